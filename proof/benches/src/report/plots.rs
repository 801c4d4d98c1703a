//! The figures as pictures: horizontal bars, one file for each question.

use std::path::Path;

use anyhow::anyhow;
use plotters::coord::Shift;
use plotters::prelude::*;

use super::number;
use crate::measure::Figures;
use crate::results::Results;
use crate::scenario::Scenario;
use crate::subject::Kind;

const WIDTH: u32 = 860;
const BAR: i32 = 22;
const GAP: i32 = 6;
const LABELS: i32 = 230;
const VALUES: i32 = 90;
const HEAD: i32 = 44;

const OURS: RGBColor = RGBColor(31, 119, 180);
const THEIRS: RGBColor = RGBColor(160, 160, 160);
const TEXT: RGBColor = RGBColor(40, 40, 40);

/// One picture.
struct Plot {
    file: &'static str,
    title: &'static str,
    scenarios: &'static [Scenario],
    figure: fn(&Figures) -> Option<f64>,
}

const PLOTS: [Plot; 5] = [
    Plot {
        file: "alone.svg",
        title: "Lock and unlock, one task: median µs (less is better)",
        scenarios: &[Scenario::Alone, Scenario::AloneMysql, Scenario::AloneSqlite],
        figure: |figures| figures.p50_us,
    },
    Plot {
        file: "keys.svg",
        title: "Each task its own key: pairs a second (more is better)",
        scenarios: &[
            Scenario::Keys16,
            Scenario::Keys64,
            Scenario::Keys256,
            Scenario::Keys256Mysql,
        ],
        figure: |figures| figures.per_s,
    },
    Plot {
        file: "hot.svg",
        title: "All tasks want one key: hand-overs a second (more is better)",
        scenarios: &[Scenario::Hot64, Scenario::Hot4proc],
        figure: |figures| figures.per_s,
    },
    Plot {
        file: "hot-waits.svg",
        title: "All tasks want one key: 99 of 100 waits are shorter, µs (less is better)",
        scenarios: &[Scenario::Hot64, Scenario::Hot4proc],
        figure: |figures| figures.p99_us,
    },
    Plot {
        file: "handover.svg",
        title: "From release to inside of another process: median µs (less is better)",
        scenarios: &[Scenario::Handover],
        figure: |figures| figures.p50_us,
    },
];

/// Writes the pictures for which the run has figures.
pub(crate) fn write(results: &Results, folder: &Path) -> anyhow::Result<()> {
    for plot in &PLOTS {
        let groups: Vec<_> = plot
            .scenarios
            .iter()
            .filter_map(|scenario| group(results, *scenario, plot.figure))
            .collect();
        if !groups.is_empty() {
            draw(plot, &groups, &folder.join(plot.file))
                .map_err(|error| anyhow!("{}: {error}", plot.file))?;
        }
    }
    Ok(())
}

/// A scenario's bars, the subjects in the order of a round.
struct Group {
    scenario: Scenario,
    bars: Vec<(Kind, f64)>,
}

fn group(results: &Results, scenario: Scenario, figure: fn(&Figures) -> Option<f64>) -> Option<Group> {
    let bars: Vec<_> = scenario
        .subjects()
        .filter_map(|kind| Some((kind, figure(&results.get(scenario, kind)?)?)))
        .collect();
    (!bars.is_empty()).then_some(Group { scenario, bars })
}

fn draw(plot: &Plot, groups: &[Group], file: &Path) -> Result<(), Box<dyn std::error::Error>> {
    let rows = groups.iter().map(|group| group.bars.len() + 1).sum::<usize>();
    let height = HEAD + i32::try_from(rows)? * (BAR + GAP) + GAP;
    let area = SVGBackend::new(file, (WIDTH, u32::try_from(height)?)).into_drawing_area();
    area.fill(&WHITE)?;
    text(&area, plot.title, 18, (GAP, 12))?;
    let mut top = HEAD;
    for group in groups {
        text(&area, group.scenario.title(), 14, (GAP, top + 4))?;
        top += BAR + GAP;
        let longest = group.bars.iter().map(|(_, value)| *value).fold(0.0, f64::max);
        for (kind, value) in &group.bars {
            let room = f64::from(i32::try_from(WIDTH)? - LABELS - VALUES);
            // At least a line, to be seen.
            #[expect(clippy::cast_possible_truncation, reason = "not wider than the picture")]
            let length = (room * value / longest.max(f64::MIN_POSITIVE)).max(1.0) as i32;
            let colour = if kind.is_ours() { OURS } else { THEIRS };
            area.draw(&Rectangle::new(
                [(LABELS, top), (LABELS + length, top + BAR)],
                colour.filled(),
            ))?;
            text(&area, kind.name(), 14, (GAP + 12, top + 4))?;
            text(&area, &number(*value), 14, (LABELS + length + GAP, top + 4))?;
            top += BAR + GAP;
        }
    }
    area.present()?;
    Ok(())
}

fn text(
    area: &DrawingArea<SVGBackend<'_>, Shift>,
    text: &str,
    size: i32,
    place: (i32, i32),
) -> Result<(), Box<dyn std::error::Error>> {
    let style = ("sans-serif", size).into_font().color(&TEXT);
    area.draw(&Text::new(text.to_owned(), place, style))
        .map_err(|error| error.to_string())?;
    Ok(())
}
