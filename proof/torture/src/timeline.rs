//! A picture of one key around a moment: a lane for each process, a bar for each section, and the faults.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use crate::check::{Calls, Facts, Finding};
use crate::history::{Event, History, MS};
use crate::process_id::ProcessId;

/// How much time is drawn before and after the moment.
const BEFORE: i64 = 5_000 * MS;
const AFTER: i64 = 2_000 * MS;

const WIDTH: i64 = 1_400;
const LEFT: i64 = 110;
const LANE: i64 = 34;
const TOP: i64 = 150;

/// The picture of a finding, if it is about a moment.
pub(crate) fn draw(history: &History, finding: &Finding) -> Option<String> {
    let (key, moment) = finding.moment()?;
    let view = View {
        from: moment - BEFORE,
        to: moment + AFTER,
    };
    let facts = Facts::read(history);
    let calls = Calls::read(history, &facts);
    let mut lanes = BTreeSet::new();
    let mut bars = Vec::new();
    for call in calls.iter().filter(|call| call.key == key) {
        let Some(section) = &call.section else { continue };
        if section.entered < view.to && call.section_end() > view.from {
            lanes.insert(call.process);
            bars.push((call, section));
        }
    }
    let lanes: Vec<ProcessId> = lanes.into_iter().collect();
    let lane = |process: ProcessId| lanes.iter().position(|other| *other == process);
    let height = TOP + LANE * i64::try_from(lanes.len()).ok()? + 40;

    let mut svg = String::new();
    let _ = write!(
        svg,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height}\" font-family=\"sans-serif\" \
         font-size=\"11\"><rect width=\"100%\" height=\"100%\" fill=\"white\"/>\
         <text x=\"10\" y=\"18\" font-size=\"13\">",
    );
    // The finding, a line for each part of it.
    for part in finding.to_string().split(" and ") {
        let _ = write!(svg, "<tspan x=\"10\" dy=\"15\">{}</tspan>", escape(part));
    }
    svg.push_str("</text>");
    for (row, process) in lanes.iter().enumerate() {
        let y = TOP + LANE * i64::try_from(row).ok()?;
        let _ = write!(svg, "<text x=\"10\" y=\"{}\">process {process}</text>", y + 17);
        for pause in facts.pauses(*process) {
            view.bar(&mut svg, y, (pause.from, pause.to), "fill=\"#dddddd\"", "stopped");
        }
    }
    for (call, section) in bars {
        let (token, number) = (section.token, call.number);
        let y = TOP + LANE * i64::try_from(lane(call.process)?).ok()?;
        // Neighbouring tokens get different colours.
        let hue = token.rem_euclid(9) * 40;
        let (stroke, width) = if finding.is_about(call.process, number) {
            ("black", 2.5)
        } else {
            ("#333", 0.5)
        };
        let paint = format!("fill=\"hsl({hue}, 70%, 65%)\" stroke=\"{stroke}\" stroke-width=\"{width}\"");
        view.bar(
            &mut svg,
            y + 4,
            (section.entered, call.section_end()),
            &paint,
            &format!("call {number}, token {token}"),
        );
    }
    let bottom = height - 30;
    for line in history
        .runner
        .iter()
        .filter(|line| (view.from..view.to).contains(&line.at))
    {
        let what = match &line.event {
            Event::Fault { fault } => match fault.slot() {
                Some(slot) => format!("{slot}: {}", fault.name()),
                None => fault.name().to_owned(),
            },
            Event::Forced { key: forced, freed } if forced == key && *freed != Some(false) => {
                format!("{key} is free by force")
            }
            Event::Killed { process } => format!("{process} killed"),
            _ => continue,
        };
        let x = view.x(line.at);
        let _ = write!(
            svg,
            "<line x1=\"{x}\" y1=\"{TOP}\" x2=\"{x}\" y2=\"{bottom}\" stroke=\"#cc0000\" stroke-dasharray=\"3\"/>\
             <text transform=\"translate({x},{}) rotate(-25)\" font-size=\"9\" fill=\"#cc0000\">{}</text>",
            TOP - 4,
            escape(&what)
        );
    }
    let x = view.x(moment);
    let _ = write!(
        svg,
        "<line x1=\"{x}\" y1=\"{TOP}\" x2=\"{x}\" y2=\"{bottom}\" stroke=\"black\"/>"
    );
    for second in 0..=(view.to - view.from) / (1_000 * MS) {
        let at = view.from + second * 1_000 * MS;
        let _ = write!(
            svg,
            "<text x=\"{}\" y=\"{}\">{} ms</text>",
            view.x(at),
            height - 12,
            (at - moment) / MS
        );
    }
    svg.push_str("</svg>\n");
    Some(svg)
}

/// The time that is drawn.
struct View {
    from: i64,
    to: i64,
}

impl View {
    fn x(&self, at: i64) -> i64 {
        let at = at.clamp(self.from, self.to);
        LEFT + (at - self.from) / 1_000 * (WIDTH - LEFT - 20) / ((self.to - self.from) / 1_000)
    }

    fn bar(&self, svg: &mut String, y: i64, (from, to): (i64, i64), paint: &str, title: &str) {
        if from >= self.to || to <= self.from {
            return;
        }
        let (x, end) = (self.x(from), self.x(to));
        let _ = write!(
            svg,
            "<rect x=\"{x}\" y=\"{y}\" width=\"{}\" height=\"20\" {paint}><title>{}</title></rect>",
            (end - x).max(1),
            escape(title)
        );
    }
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}
