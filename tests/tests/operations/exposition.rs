//! Reads what an exporter shows to Prometheus.

use std::collections::{BTreeMap, BTreeSet};

type Labels = BTreeMap<String, String>;

/// The samples of an exposition in the text format.
#[derive(Debug, Default)]
pub(crate) struct Exposition {
    samples: Vec<(String, Labels, String)>,
    /// The metrics that the exposition describes.
    pub(crate) described: BTreeSet<String>,
    typed: BTreeSet<String>,
}

impl Exposition {
    pub(crate) fn parse(text: &str) -> Self {
        let mut found = Self::default();
        for line in text.lines().filter(|line| !line.is_empty()) {
            let mut words = line.split(' ');
            match (words.next(), words.next(), words.next()) {
                (Some("#"), Some("HELP"), Some(name)) => drop(found.described.insert(name.to_owned())),
                (Some("#"), Some("TYPE"), Some(name)) => drop(found.typed.insert(name.to_owned())),
                _ => found.samples.push(sample(line)),
            }
        }
        for (name, ..) in &found.samples {
            assert!(found.typed.contains(metric(name)), "{name} has no type");
        }
        found
    }

    /// The names of the samples.
    pub(crate) fn names(&self) -> BTreeSet<&str> {
        self.samples.iter().map(|(name, ..)| &**name).collect()
    }

    /// The names of the metrics.
    pub(crate) fn metrics(&self) -> BTreeSet<&str> {
        self.samples.iter().map(|(name, ..)| metric(name)).collect()
    }

    /// The names of the labels.
    pub(crate) fn labels(&self) -> BTreeSet<&str> {
        let names = self.samples.iter().flat_map(|(_, labels, _)| labels.keys());
        names.map(|name| &**name).collect()
    }

    /// The values of the labels.
    pub(crate) fn values(&self) -> BTreeSet<&str> {
        let values = self.samples.iter().flat_map(|(_, labels, _)| labels.values());
        values.map(|value| &**value).collect()
    }

    /// The values of the samples that have these labels.
    fn samples(&self, name: &str, labels: &[(&str, &str)]) -> impl Iterator<Item = &str> {
        let has = |of: &Labels| {
            let mut labels = labels.iter();
            labels.all(|(name, value)| of.get(*name).is_some_and(|found| found == value))
        };
        let fits = self
            .samples
            .iter()
            .filter(move |(of, with, _)| of == name && has(with));
        fits.map(|(.., value)| &**value)
    }

    /// The sum of the samples that have these labels, which are whole numbers; `None` where there is none.
    pub(crate) fn count(&self, name: &str, labels: &[(&str, &str)]) -> Option<i64> {
        let values = self
            .samples(name, labels)
            .map(|value| value.parse().expect("a whole number"));
        values.reduce(|a: i64, b| a + b)
    }

    /// The sum of the samples that have these labels, in seconds.
    pub(crate) fn seconds(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        self.samples(name, labels)
            .map(|value| value.parse::<f64>().expect("a number"))
            .sum()
    }
}

/// The metric that a sample belongs to.
fn metric(sample: &str) -> &str {
    let parts = ["_bucket", "_sum", "_count"];
    parts
        .iter()
        .find_map(|part| sample.strip_suffix(part))
        .unwrap_or(sample)
}

/// Reads `name{label="value",…} 1.5`. No value of ours has quotes or braces inside.
fn sample(line: &str) -> (String, Labels, String) {
    let (name, value) = line.rsplit_once(' ').expect("a sample has a value");
    let value = value.to_owned();
    let Some((name, labels)) = name.split_once('{') else {
        return (name.to_owned(), Labels::new(), value);
    };
    let labels = labels.strip_suffix('}').expect("the labels end");
    let pairs = labels.split(',').map(|label| {
        let (name, value) = label.split_once("=\"").expect("a label has a value");
        let value = value.strip_suffix('"').expect("the value ends");
        (name.to_owned(), value.to_owned())
    });
    (name.to_owned(), pairs.collect(), value)
}
