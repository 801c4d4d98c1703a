//! Code in pages: what names a file is in that file, word by word, and all Rust is Rust.

use std::path::Path;

use super::Pages;
use super::page::{Code, Page, without_comments};
use super::translation;

pub(crate) fn problems(top: &Path, pages: &Pages) -> Vec<String> {
    let mut problems = Vec::new();
    for page in pages.values() {
        for code in page.sections.iter().flat_map(|section| &section.code) {
            let fault = match &code.file {
                Some(file) => {
                    let translated = translation::original(&page.path).is_some();
                    not_in(&top.join(file), code, translated).map(|fault| format!("{fault} {file}"))
                }
                None if code.language == "rust" => not_rust(&code.text),
                None => None,
            };
            problems.extend(fault.map(|fault| place(page, code) + &fault));
        }
    }
    problems
}

fn place(page: &Page, code: &Code) -> String {
    format!("{}:{}: ", page.path, code.line)
}

/// The code may stand further to the right in the file. The comments of a translation are translated.
fn not_in(file: &Path, code: &Code, translated: bool) -> Option<String> {
    let plain = |text: &str| {
        let text = if translated {
            without_comments(&code.language, text)
        } else {
            text.to_owned()
        };
        text.lines().map(str::trim).collect::<Vec<_>>().join("\n")
    };
    let Ok(text) = std::fs::read_to_string(file) else {
        return Some("this code names a file that is not there:".into());
    };
    (!plain(&text).contains(plain(&code.text).trim())).then(|| "this code is not what stands in".into())
}

/// Why it is neither items nor statements. `…` stands for what is left out.
fn not_rust(code: &str) -> Option<String> {
    let code = code.replace('…', "()");
    let error = syn::parse_file(&format!("async fn page() {{\n{code}\n}}")).err()?;
    // Methods stand outside of a function.
    let is_methods = syn::parse_file(&format!("impl Page {{\n{code}\n}}")).is_ok();
    (!is_methods).then(|| format!("this is not Rust: {error}"))
}
