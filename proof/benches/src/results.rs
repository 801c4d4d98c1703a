//! The results of a run.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use crate::measure::Figures;
use crate::scenario::Scenario;
use crate::subject::Kind;

/// The rounds of all scenarios, and where they were measured.
#[derive(Debug, Default)]
pub(crate) struct Results {
    scenarios: BTreeMap<Scenario, BTreeMap<Kind, Vec<Figures>>>,
    pub(crate) machine: Map<String, Value>,
    /// The subjects that could not be measured, where, and why.
    pub(crate) failures: Vec<String>,
}

impl Results {
    pub(crate) fn set(&mut self, scenario: Scenario, kind: Kind, rounds: Vec<Figures>) {
        self.scenarios.entry(scenario).or_default().insert(kind, rounds);
    }

    /// The median over the rounds.
    pub(crate) fn get(&self, scenario: Scenario, kind: Kind) -> Option<Figures> {
        let rounds = self.scenarios.get(&scenario)?.get(&kind)?;
        (!rounds.is_empty()).then(|| Figures::median(rounds))
    }

    /// One round alone.
    pub(crate) fn round(&self, number: usize) -> Self {
        let one = |rounds: &Vec<Figures>| rounds.get(number).cloned().into_iter().collect();
        let scenarios = self.scenarios.iter().map(|(scenario, subjects)| {
            let subjects = subjects.iter().map(|(kind, rounds)| (*kind, one(rounds)));
            (*scenario, subjects.collect())
        });
        Self {
            scenarios: scenarios.collect(),
            ..Self::default()
        }
    }

    /// The most connections that one process of ours had, with 256 tasks or a thousand waiters.
    pub(crate) fn most_connections_of_ours(&self) -> Option<f64> {
        let scenarios = [
            Scenario::Keys256,
            Scenario::Keys256Mysql,
            Scenario::Waiters,
            Scenario::Held,
        ];
        let ours = [Kind::DblockPostgres, Kind::DblockMysql];
        let figures = scenarios
            .iter()
            .flat_map(|scenario| ours.iter().map(|kind| self.get(*scenario, *kind)));
        figures
            .flatten()
            .filter_map(|figures| figures.connections)
            .reduce(f64::max)
    }

    /// Each scenario with the medians of its subjects.
    pub(crate) fn scenarios(&self) -> impl Iterator<Item = (Scenario, BTreeMap<Kind, Figures>)> {
        self.scenarios.iter().map(|(scenario, subjects)| {
            let medians = subjects
                .keys()
                .filter_map(|kind| Some((*kind, self.get(*scenario, *kind)?)));
            (*scenario, medians.collect())
        })
    }

    /// Every subject that took part, each once.
    pub(crate) fn subjects(&self) -> std::collections::BTreeSet<Kind> {
        self.scenarios
            .values()
            .flat_map(BTreeMap::keys)
            .copied()
            .collect()
    }

    /// Everything, with what the ratios came to and how sure they are.
    pub(crate) fn json(&self, ratios: &Map<String, Value>, spreads: &Map<String, Value>) -> Value {
        let scenarios: Map<String, Value> = self
            .scenarios()
            .map(|(scenario, subjects)| {
                let subjects: Map<String, Value> = subjects
                    .iter()
                    .map(|(kind, figures)| (kind.name().to_owned(), json!(figures)))
                    .collect();
                (scenario.name().to_owned(), Value::Object(subjects))
            })
            .collect();
        let settings: Map<String, Value> = self
            .subjects()
            .into_iter()
            .map(|kind| (kind.name().to_owned(), json!(kind.settings())))
            .collect();
        json!({ "scenarios": scenarios, "ratios": ratios, "spreads": spreads, "machine": self.machine, "settings": settings, "failures": self.failures })
    }
}
