//! The book itself, by mdBook.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use tokio::process::Command;

use super::page::Page;
use super::{Pages, SUMMARY};
use crate::command::{STOP, kept, top};
use crate::steps::target_folder;
use crate::tool::Tool;

const MDBOOK: Tool = Tool {
    name: "mdbook",
    version: "0.5.4",
    features: &["--no-default-features", "--features", "search"],
};

/// The files that the book needs beside its pages.
const FILES: [&str; 3] = ["book.toml", "theme/head.hbs", "src/SUMMARY.md"];

pub(super) async fn folder() -> anyhow::Result<PathBuf> {
    Ok(target_folder().await?.join("book"))
}

/// Makes the book, and looks whether its anchors are those of the links.
pub(super) async fn make(pages: &Pages) -> anyhow::Result<()> {
    let mdbook = MDBOOK.get().await.context("mdBook cannot be installed")?;
    let folder = folder().await?;
    assemble(top(), &folder, pages)?;
    let ended = kept(Command::new(mdbook).arg("build").arg(&folder), STOP).await?;
    if !ended.passed || ended.output.contains("WARN") || ended.output.contains("ERROR") {
        bail!("mdBook complains:\n{}", ended.output);
    }
    anchors(&folder.join("book"), pages)
}

/// The pages as mdBook wants them: in one folder, and without links to what is no page.
fn assemble(top: &Path, folder: &Path, pages: &Pages) -> anyhow::Result<()> {
    if folder.exists() {
        std::fs::remove_dir_all(folder)?;
    }
    let own = top
        .join(SUMMARY)
        .parent()
        .context("it is in a folder")?
        .to_owned();
    let source = folder.join("src");
    for file in FILES {
        copy(
            &own.join(Path::new(file).file_name().context("it is a file")?),
            &folder.join(file),
        )?;
    }
    for page in pages.values() {
        let path = source.join(&page.path);
        std::fs::create_dir_all(path.parent().context("it is in a folder")?)?;
        std::fs::write(&path, page_of_the_book(top, &source, page, pages)?)?;
    }
    Ok(())
}

/// Files that it links to come along. A folder cannot, so its link becomes plain text.
fn page_of_the_book(top: &Path, source: &Path, page: &Page, pages: &Pages) -> anyhow::Result<String> {
    let mut text = page.text.clone();
    for link in page.links.iter().rev() {
        let Some((path, _)) = page.place(link) else {
            continue;
        };
        if pages.contains_key(&path) {
            continue;
        }
        if top.join(&path).is_dir() {
            text.replace_range(link.range.clone(), &page.text[link.label.clone()]);
        } else {
            copy(&top.join(&path), &source.join(&path))?;
        }
    }
    Ok(text)
}

fn copy(from: &Path, to: &Path) -> anyhow::Result<()> {
    std::fs::create_dir_all(to.parent().context("it is in a folder")?)?;
    std::fs::copy(from, to).with_context(|| format!("cannot copy {}", from.display()))?;
    Ok(())
}

/// Each link's heading has the same name in the book.
fn anchors(book: &Path, pages: &Pages) -> anyhow::Result<()> {
    for page in pages.values() {
        for link in &page.links {
            let Some((path, Some(anchor))) = page.place(link) else {
                continue;
            };
            let html = book.join(html(&path));
            let text = std::fs::read_to_string(&html).with_context(|| html.display().to_string())?;
            if !text.contains(&format!("id=\"{anchor}\"")) {
                bail!(
                    "{}: {} has no heading #{anchor}, which {} links to",
                    page.path,
                    html.display(),
                    link.target
                );
            }
        }
    }
    Ok(())
}

/// mdBook's name of a page.
fn html(path: &str) -> String {
    let path = path.strip_suffix(".md").unwrap_or(path);
    match path.strip_suffix("README") {
        Some(folder) => format!("{folder}index.html"),
        None => format!("{path}.html"),
    }
}
