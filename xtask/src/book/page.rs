//! A page of Markdown: its sections, links and code.

use std::ops::Range;
use std::path::Path;

use pulldown_cmark::{CodeBlockKind, Event, Options, Parser, Tag, TagEnd};

#[derive(Debug)]
pub(crate) struct Page {
    /// From the top of the repository.
    pub(crate) path: String,
    pub(crate) text: String,
    pub(crate) sections: Vec<Section>,
    pub(crate) links: Vec<Link>,
}

/// A heading and what follows it, up to the next heading of any level.
#[derive(Debug)]
pub(crate) struct Section {
    pub(crate) heading: String,
    pub(crate) level: usize,
    pub(crate) line: usize,
    /// Where its text stands in the page.
    pub(crate) range: Range<usize>,
    pub(crate) code: Vec<Code>,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Code {
    pub(crate) language: String,
    pub(crate) text: String,
    pub(crate) line: usize,
    /// The file that has it: a comment above the block names it.
    pub(crate) file: Option<String>,
}

impl Code {
    /// The part that a translation must not change.
    pub(crate) fn without_comments(&self) -> String {
        without_comments(&self.language, &self.text)
    }
}

/// The code without its comments, line by line. A comment begins a line, or stands behind a space.
pub(crate) fn without_comments(language: &str, code: &str) -> String {
    let begins = match language {
        "rust" => "//",
        "sql" => "-- ",
        "sh" | "toml" | "yaml" => "# ",
        _ => return code.to_owned(),
    };
    let line = |line: &str| {
        let mut at = line.match_indices(begins).map(|(at, _)| at);
        let comment = at.find(|at| line[..*at].is_empty() || line[..*at].ends_with(char::is_whitespace));
        line[..comment.unwrap_or(line.len())].trim_end().to_owned()
    };
    code.lines().map(line).collect::<Vec<_>>().join("\n")
}

#[derive(Debug)]
pub(crate) struct Link {
    pub(crate) target: String,
    /// The part that a reader sees, as it is written.
    pub(crate) label: Range<usize>,
    /// The whole link in the page.
    pub(crate) range: Range<usize>,
}

impl Page {
    pub(crate) fn new(path: &str, text: String) -> Self {
        let mut page = Self {
            path: path.to_owned(),
            text: String::new(),
            sections: Vec::new(),
            links: Vec::new(),
        };
        page.read(&text);
        page.text = text;
        page
    }

    fn read(&mut self, text: &str) {
        let line = |at: usize| text[..at].matches('\n').count() + 1;
        let (mut in_heading, mut in_code) = (false, false);
        let mut open = Vec::new();
        let mut file = None;
        let options = Options::ENABLE_TABLES | Options::ENABLE_STRIKETHROUGH;
        for (event, range) in Parser::new_ext(text, options).into_offset_iter() {
            match event {
                Event::Start(Tag::Heading { level, .. }) => {
                    in_heading = true;
                    if let Some(last) = self.sections.last_mut() {
                        last.range.end = range.start;
                    }
                    self.sections.push(Section {
                        heading: String::new(),
                        level: level as usize,
                        line: line(range.start),
                        range: range.start..text.len(),
                        code: Vec::new(),
                    });
                }
                Event::End(TagEnd::Heading(_)) => in_heading = false,
                Event::Start(Tag::CodeBlock(kind)) => {
                    in_code = true;
                    let language = match kind {
                        CodeBlockKind::Fenced(language) => language.to_string(),
                        CodeBlockKind::Indented => String::new(),
                    };
                    if let Some(section) = self.sections.last_mut() {
                        section.code.push(Code {
                            language,
                            text: String::new(),
                            line: line(range.start),
                            file: file.take(),
                        });
                    }
                }
                Event::End(TagEnd::CodeBlock) => in_code = false,
                Event::Start(Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. }) => {
                    open.push(self.links.len());
                    self.links.push(Link {
                        target: dest_url.to_string(),
                        label: range.end..range.start,
                        range,
                    });
                }
                Event::End(TagEnd::Link | TagEnd::Image) => drop(open.pop()),
                Event::Html(html) | Event::InlineHtml(html) => {
                    file = named_file(&html);
                    self.links.extend(sources(&html).map(|target| Link {
                        target,
                        label: range.clone(),
                        range: range.clone(),
                    }));
                }
                Event::Start(Tag::Paragraph) => file = None,
                Event::Text(words) | Event::Code(words) => {
                    for link in &open {
                        let label = &mut self.links[*link].label;
                        *label = label.start.min(range.start)..label.end.max(range.end);
                    }
                    if let Some(section) = self.sections.last_mut() {
                        match section.code.last_mut() {
                            Some(code) if in_code => code.text += &words,
                            _ if in_heading => section.heading += &words,
                            _ => {}
                        }
                    }
                }
                _ => {}
            }
        }
    }

    pub(crate) fn text_of(&self, section: &Section) -> &str {
        &self.text[section.range.clone()]
    }

    /// The anchors that GitHub and mdBook give the headings.
    pub(crate) fn anchors(&self) -> Vec<String> {
        let mut anchors: Vec<String> = Vec::new();
        for section in &self.sections {
            let anchor = anchor(&section.heading);
            let same = |other: &&String| {
                let counted = other
                    .strip_prefix(&anchor)
                    .and_then(|rest| rest.strip_prefix('-'));
                **other == anchor || counted.is_some_and(|count| count.parse::<u8>().is_ok())
            };
            match anchors.iter().filter(same).count() {
                0 => anchors.push(anchor),
                count => anchors.push(format!("{anchor}-{count}")),
            }
        }
        anchors
    }

    /// A link's target as a path from the top, and its anchor. `None` for what is elsewhere.
    pub(crate) fn place<'a>(&self, link: &'a Link) -> Option<(String, Option<&'a str>)> {
        if link.target.contains("://") || link.target.starts_with("mailto:") {
            return None;
        }
        let (path, anchor) = match link.target.split_once('#') {
            Some((path, anchor)) => (path, Some(anchor)),
            None => (&*link.target, None),
        };
        if path.is_empty() {
            return Some((self.path.clone(), anchor));
        }
        let mut parts: Vec<&str> = self.path.split('/').collect();
        parts.pop();
        for part in path.split('/') {
            match part {
                "." | "" => {}
                ".." if parts.last().is_some_and(|last| *last != "..") => drop(parts.pop()),
                part => parts.push(part),
            }
        }
        Some((parts.join("/"), anchor))
    }
}

/// `examples/guard.rs` in `<!-- examples/guard.rs -->`.
fn named_file(html: &str) -> Option<String> {
    let name = html.trim().strip_prefix("<!--")?.strip_suffix("-->")?.trim();
    (name.contains('/') && !name.contains(' ')).then(|| name.to_owned())
}

/// `images/page.png` in `<img src="images/page.png">`, and in `<source srcset="images/page.png">`.
fn sources(html: &str) -> impl Iterator<Item = String> {
    let rests = [" src=\"", " srcset=\""]
        .into_iter()
        .flat_map(|name| html.split(name).skip(1));
    rests.filter_map(|rest| Some(rest.split_once('"')?.0.to_owned()))
}

fn anchor(heading: &str) -> String {
    let kept = heading
        .chars()
        .filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
    kept.collect::<String>().to_lowercase().replace(' ', "-")
}

pub(crate) fn is_page(path: &Path) -> bool {
    path.extension().is_some_and(|end| end == "md")
}
