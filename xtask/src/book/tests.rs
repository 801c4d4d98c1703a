use super::page::Page;
use super::{Pages, code, links, translation};

const ENGLISH: &str =
    "# Title\n\nFirst words.\n\n## What to `do`\n\n1. Look:\n   ```sh\n   ls\n   ```\n\n## Last\n\nEnd.\n";

fn pages(given: &[(&str, &str)]) -> Pages {
    let page = |(path, text): &(&str, &str)| ((*path).to_owned(), Page::new(path, (*text).to_owned()));
    given.iter().map(page).collect()
}

/// A translation of `ENGLISH` that has been read, in a folder of its own.
fn translated(chinese: &str) -> String {
    let top = tempfile::tempdir().unwrap();
    std::fs::create_dir_all(top.path().join("docs/zh-CN")).unwrap();
    let pages = pages(&[("docs/a.md", ENGLISH), ("docs/zh-CN/a.md", chinese)]);
    let headings = ["Title", "What to do", "Last"].map(str::to_owned);
    translation::refresh(top.path(), &pages, &headings).unwrap();
    std::fs::read_to_string(top.path().join("docs/zh-CN/a.md")).unwrap()
}

fn chinese() -> String {
    let sections = [
        "# 标题\n<!-- en 0 Title -->\n\n",
        "## 做什么\n<!-- en 0 What to do -->\n\n```sh\nls\n```\n\n",
        "## 最后\n<!-- en 0 Last -->\n",
    ];
    translated(&sections.concat())
}

/// The faults of a translation, without the remedy at the end.
fn drift(english: &str, chinese: &str) -> Vec<String> {
    let mut problems = translation::problems(&pages(&[("docs/a.md", english), ("docs/zh-CN/a.md", chinese)]));
    if let Some(remedy) = problems.pop() {
        assert!(remedy.contains("--translated"), "{remedy}");
    }
    problems
}

#[test]
fn a_translation_that_was_read_is_in_order() {
    let none: [&str; 0] = [];
    assert_eq!(drift(ENGLISH, &chinese()), none);
    // Lines may be broken elsewhere.
    assert_eq!(
        drift(&ENGLISH.replace("First words", "First\nwords"), &chinese()),
        none
    );
    assert_eq!(drift(ENGLISH, &chinese().replace("\nls", "\nls  # 看")), none);
}

#[test]
fn each_drift_names_its_section() {
    let chinese = chinese();
    for (english, chinese, expected) in [
        (
            ENGLISH.replace("End", "The end"),
            chinese.clone(),
            "docs/zh-CN/a.md:11: “Last” has changed in English (docs/a.md:12)",
        ),
        (
            ENGLISH.replace("Last", "Latest"),
            chinese.clone(),
            "docs/zh-CN/a.md:11: “Last” is no longer in docs/a.md",
        ),
        (
            ENGLISH.into(),
            chinese.replace("\nls", "\nls -l"),
            "docs/zh-CN/a.md:4: the code of “What to do” is not that of docs/a.md:5, whatever its comments",
        ),
        (
            ENGLISH.into(),
            chinese.replace("## 最后", "### 最后"),
            "docs/zh-CN/a.md:11: “Last” has 2 `#` in English",
        ),
        (
            ENGLISH.replace("## Last", "## New\n\n## Last"),
            chinese.clone(),
            "docs/zh-CN/a.md:11: before this, “New” of docs/a.md is missing",
        ),
        (
            ENGLISH.to_owned() + "## New\n",
            chinese.clone(),
            "docs/zh-CN/a.md: “New” of docs/a.md is missing",
        ),
        (
            ENGLISH.into(),
            chinese + "## 又\n",
            "docs/zh-CN/a.md:13: “又” does not name its English section: write <!-- en 0 The English heading --> below it",
        ),
    ] {
        let found = drift(&english, &chinese);
        assert!(found.iter().any(|problem| problem == expected), "{found:#?}");
    }
}

#[test]
fn only_sections_that_are_named_are_noted_as_read() {
    let top = tempfile::tempdir().unwrap();
    let english = ENGLISH.replace("End", "The end").replace("First", "Other");
    std::fs::create_dir_all(top.path().join("docs/zh-CN")).unwrap();
    let pages = pages(&[("docs/a.md", &english), ("docs/zh-CN/a.md", &chinese())]);
    translation::refresh(top.path(), &pages, &["Last".to_owned()]).unwrap();
    let read = std::fs::read_to_string(top.path().join("docs/zh-CN/a.md")).unwrap();
    let left = drift(&english, &read);
    assert!(
        left.len() == 1 && left[0].contains("“Title” has changed"),
        "{left:#?}"
    );
}

#[test]
fn links_lead_to_files_and_headings() {
    let top = tempfile::tempdir().unwrap();
    std::fs::write(top.path().join("code.rs"), "").unwrap();
    std::fs::write(top.path().join("other.md"), "").unwrap();
    let text = "# One\n\n## One\n\n[a](#one-1) [b](../README.md#top-of-it) [c](../code.rs) [d](https://x.y/z)\n\
                [e](#two) [f](../gone.rs) [g](../other.md) [h](../code.rs#L3) <img src=\"../gone.png\">\n\n<picture>\n<source srcset=\"../dark.png\">\n</picture>\n";
    let pages = pages(&[("docs/a.md", text), ("README.md", "# `Top` of it\n")]);
    let links = |what: &str| format!("docs/a.md:6: the link to {what}");
    assert_eq!(
        links::problems(top.path(), &pages),
        [
            links("#two names a heading that is not there"),
            links("../gone.rs leads to a file that is not there"),
            links("../other.md leaves the book: add the page to docs/book/SUMMARY.md"),
            links("../code.rs#L3 names a heading in a file without headings"),
            links("../gone.png leads to a file that is not there"),
            "docs/a.md:9: the link to ../dark.png leads to a file that is not there".to_owned(),
        ]
    );
}

#[test]
fn code_is_what_its_file_says_and_rust() {
    let top = tempfile::tempdir().unwrap();
    std::fs::create_dir(top.path().join("examples")).unwrap();
    std::fs::write(
        top.path().join("examples/a.rs"),
        "mod a {\n    fn a() {\n        b();\n    }\n}\n",
    )
    .unwrap();
    let problems = |text: &str| {
        let pages = pages(&[("a.md", &format!("# A\n\n{text}\n"))]);
        code::problems(top.path(), &pages).join("\n")
    };
    let named = "<!-- examples/a.rs -->\n```rust\nfn a() {\n    b();\n}\n```";
    assert_eq!(problems(named), "");
    assert_eq!(
        problems(&named.replace("b()", "c()")),
        "a.md:4: this code is not what stands in examples/a.rs"
    );
    assert!(
        problems(&named.replace("a.rs", "b.rs")).contains("names a file that is not there: examples/b.rs")
    );
    for rust in [
        "let a = b(…).await?; // …",
        "use a::b;\nfn c() { … }",
        "async fn a(&self) { … }",
    ] {
        assert_eq!(problems(&format!("```rust\n{rust}\n```")), "");
    }
    assert!(problems("```rust\nlet a = ;\n```").contains("a.md:3: this is not Rust: "));
}
