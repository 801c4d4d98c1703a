use std::fs;

use super::check;

/// The circles in a crate of these files.
fn found(files: &[(&str, &str)]) -> Option<String> {
    let folder = tempfile::tempdir().unwrap();
    for (name, text) in files {
        let path = folder.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    let error = check(folder.path()).err()?;
    Some(
        error
            .to_string()
            .replace(&format!("{}/", folder.path().display()), ""),
    )
}

#[test]
fn two_that_use_each_other_are_named_with_their_lines() {
    let found = found(&[
        ("lib.rs", "mod a;\nmod b;"),
        ("a.rs", "\nuse crate::b::{B};\npub struct A;"),
        ("b/mod.rs", "pub mod deep;\npub struct B;"),
        ("b/deep.rs", "fn deep() {\n    let _ = crate::a::A;\n}"),
    ]);
    let circle = "a uses b at a.rs:2, and back at b/deep.rs:2";
    assert!(
        found.as_ref().is_some_and(|found| found.starts_with(circle)),
        "{found:?}"
    );
}

#[test]
fn a_name_is_where_it_is_written_and_not_where_it_is_exported() {
    let lib = "mod a;\nmod b;\npub use a::A;\npub use b::inner::B as C;";
    let inner = ("b/inner.rs", "pub struct B;\nuse super::super::A;");
    let found = found(&[
        ("lib.rs", lib),
        ("a.rs", "use crate::C;"),
        ("b.rs", "mod inner;"),
        inner,
    ]);
    assert!(found.is_some_and(|found| found.contains("back at b/inner.rs:2")));
}

#[test]
fn ancestors_children_and_tests_are_free() {
    let a = "mod child;\nuse child::Child;\npub struct A;\nuse std::fmt;\n\
             #[cfg(test)]\nmod tests { use crate::b::B; }";
    let found = found(&[
        ("lib.rs", "mod a;\nmod b;\nuse a::A;\npub struct Root;"),
        ("a.rs", a),
        ("a/child.rs", "use super::A;\nuse crate::Root;\npub struct Child;"),
        ("a/tests.rs", "use crate::b::B;"),
        ("b.rs", "use crate::a::A;\npub struct B;"),
    ]);
    assert_eq!(found, None);
}
