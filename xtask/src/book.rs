//! The documents as one book, in two languages: what they say of each other and of the code, and the book
//! itself.
//!
//! A page that leads nowhere, code that is not what it is taken from, a figure that nobody measured, and a
//! translation of an older text are found without any tool. mdBook makes the book in `target/book`, from copies of the pages.

mod code;
mod figures;
mod links;
mod made;
mod page;
mod translation;

use std::collections::BTreeMap;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context as _, bail};

use crate::command::top;
use page::{Page, is_page};

/// Which pages the book has, in their order. Its links begin at the top of the repository.
const SUMMARY: &str = "docs/book/SUMMARY.md";

/// Where the pages stand that must be in the book.
const DOCUMENTS: &str = "docs";

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Note that the translations of these sections say what the English ones say today: their hashes are
    /// written anew.
    #[arg(long, value_name = "ENGLISH_HEADING", num_args = 1..)]
    translated: Vec<String>,
}

/// The pages, by their paths from the top.
type Pages = BTreeMap<String, Page>;

pub(crate) async fn run(args: &Args) -> anyhow::Result<ExitCode> {
    if !args.translated.is_empty() {
        translation::refresh(top(), &pages(top())?, &args.translated)?;
    }
    made::make(&check()?).await?;
    println!("the book is in {}", made::folder().await?.join("book").display());
    Ok(ExitCode::SUCCESS)
}

/// Checks all pages.
pub(crate) fn check() -> anyhow::Result<Pages> {
    let pages = pages(top())?;
    let mut problems = unlisted(top(), &pages)?;
    problems.extend(links::problems(top(), &pages));
    problems.extend(code::problems(top(), &pages));
    problems.extend(figures::problems(top(), &pages)?);
    problems.extend(translation::problems(&pages));
    if !problems.is_empty() {
        bail!("the documents do not agree:\n{}", problems.join("\n"));
    }
    Ok(pages)
}

/// All pages that the summary names.
fn pages(top: &Path) -> anyhow::Result<Pages> {
    let read = |path: &str| {
        let text = std::fs::read_to_string(top.join(path)).with_context(|| format!("cannot read {path}"))?;
        anyhow::Ok(Page::new(path, text))
    };
    let summary = read(SUMMARY)?;
    let paths = summary.links.iter().map(|link| link.target.clone());
    paths.map(|path| Ok((path.clone(), read(&path)?))).collect()
}

/// Documents that the book forgets.
fn unlisted(top: &Path, pages: &Pages) -> anyhow::Result<Vec<String>> {
    let mut problems = Vec::new();
    for entry in std::fs::read_dir(top.join(DOCUMENTS))? {
        let name = entry?.file_name();
        let path = format!("{DOCUMENTS}/{}", name.to_string_lossy());
        if is_page(Path::new(&path)) && !pages.contains_key(&path) {
            problems.push(format!("{path} is not in {SUMMARY}: add it"));
        }
    }
    Ok(problems)
}

#[cfg(test)]
mod tests;
