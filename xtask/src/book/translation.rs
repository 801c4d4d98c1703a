//! Each section of a translation names the English one and the hash of what it said when it was translated:
//! `<!-- en 3f9a1c2b The English heading -->`, below its own heading.

use std::path::Path;

use anyhow::Context as _;
use uuid::Uuid;

use super::Pages;
use super::page::{Page, Section};

const REMEDY: &str = "translate what has changed, then name each section that you have looked at: \
                      cargo xtask book --translated 'The English heading'";

/// The origin that a section names.
struct Origin<'a> {
    hash: &'a str,
    heading: &'a str,
}

/// The English page of a translation, and whether the path is one of a translation.
pub(crate) fn original(path: &str) -> Option<String> {
    let original = path.replace("/zh-CN/", "/").replace(".zh-CN.md", ".md");
    (original != path).then_some(original)
}

pub(crate) fn problems(pages: &Pages) -> Vec<String> {
    let mut problems = Vec::new();
    for page in pages.values() {
        let Some(original) = original(&page.path) else {
            continue;
        };
        match pages.get(&original) {
            Some(english) => compare(page, english, &mut problems),
            None => problems.push(format!(
                "{} translates {original}, which is not in the book",
                page.path
            )),
        }
    }
    if !problems.is_empty() {
        problems.push(REMEDY.to_owned());
    }
    problems
}

fn compare(page: &Page, english: &Page, problems: &mut Vec<String>) {
    let mut rest = english.sections.iter().peekable();
    for section in &page.sections {
        let mut tell = |what: String| problems.push(format!("{}:{}: {what}", page.path, section.line));
        let Some(origin) = origin(page, section) else {
            tell(format!(
                "“{}” does not name its English section: write <!-- en 0 The English heading --> below it",
                section.heading
            ));
            continue;
        };
        if !english
            .sections
            .iter()
            .any(|other| other.heading == origin.heading)
        {
            tell(format!("“{}” is no longer in {}", origin.heading, english.path));
            continue;
        }
        while let Some(skipped) = rest.next_if(|other| other.heading != origin.heading) {
            tell(format!(
                "before this, “{}” of {} is missing",
                skipped.heading, english.path
            ));
        }
        let Some(source) = rest.next() else {
            tell(format!(
                "“{}” stands elsewhere in {}",
                origin.heading, english.path
            ));
            continue;
        };
        if source.level != section.level {
            tell(format!(
                "“{}” has {} `#` in English",
                origin.heading, source.level
            ));
        }
        if hash(english.text_of(source)) != origin.hash {
            tell(format!(
                "“{}” has changed in English ({}:{})",
                origin.heading, english.path, source.line
            ));
        }
        let code = |section: &Section| {
            section
                .code
                .iter()
                .map(|code| (code.language.clone(), code.without_comments()))
                .collect::<Vec<_>>()
        };
        if code(source) != code(section) {
            tell(format!(
                "the code of “{}” is not that of {}:{}, whatever its comments",
                origin.heading, english.path, source.line
            ));
        }
    }
    problems.extend(rest.map(|missing| {
        format!(
            "{}: “{}” of {} is missing",
            page.path, missing.heading, english.path
        )
    }));
}

/// Writes the hashes anew, of the sections with these English headings.
pub(crate) fn refresh(top: &Path, pages: &Pages, headings: &[String]) -> anyhow::Result<()> {
    for page in pages.values() {
        let Some(english) = original(&page.path).and_then(|original| pages.get(&original)) else {
            continue;
        };
        let mut text = page.text.clone();
        let origins = page.sections.iter().filter_map(|section| origin(page, section));
        for origin in origins.filter(|origin| headings.iter().any(|heading| heading == origin.heading)) {
            let source = english
                .sections
                .iter()
                .find(|other| other.heading == origin.heading);
            if let Some(source) = source {
                let before = format!("<!-- en {} {} -->", origin.hash, origin.heading);
                let now = format!("<!-- en {} {} -->", hash(english.text_of(source)), origin.heading);
                text = text.replace(&before, &now);
            }
        }
        std::fs::write(top.join(&page.path), text).with_context(|| page.path.clone())?;
    }
    Ok(())
}

fn origin<'a>(page: &'a Page, section: &Section) -> Option<Origin<'a>> {
    let comment = page
        .text_of(section)
        .lines()
        .find_map(|line| line.strip_prefix("<!-- en "))?;
    let (hash, heading) = comment.strip_suffix(" -->")?.split_once(' ')?;
    Some(Origin { hash, heading })
}

/// Of the words alone, so that other line breaks are no change.
fn hash(text: &str) -> String {
    let words: Vec<&str> = text.split_whitespace().collect();
    let hash = Uuid::new_v5(&Uuid::NAMESPACE_OID, words.join(" ").as_bytes());
    hash.simple().to_string()[..8].to_owned()
}
