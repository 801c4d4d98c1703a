//! Links lead to files and headings that are there.

use std::path::Path;

use super::page::is_page;
use super::{Pages, SUMMARY};

pub(crate) fn problems(top: &Path, pages: &Pages) -> Vec<String> {
    let mut problems = Vec::new();
    for page in pages.values() {
        for link in &page.links {
            let Some((path, anchor)) = page.place(link) else {
                continue;
            };
            let line = page.text[..link.range.start].matches('\n').count() + 1;
            let mut tell = |what: &str| {
                let target = &link.target;
                problems.push(format!("{}:{line}: the link to {target} {what}", page.path));
            };
            match (pages.get(&path), anchor) {
                (Some(page), Some(anchor)) if !page.anchors().iter().any(|there| there == anchor) => {
                    tell("names a heading that is not there");
                }
                (None, _) if !top.join(&path).exists() => tell("leads to a file that is not there"),
                (None, _) if is_page(Path::new(&path)) => {
                    tell(&format!("leaves the book: add the page to {SUMMARY}"));
                }
                (None, Some(_)) => tell("names a heading in a file without headings"),
                (Some(_), _) | (None, None) => {}
            }
        }
    }
    problems
}
