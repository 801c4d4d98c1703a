//! Every form that the attributes accept. None of them gives a warning.

#![deny(warnings, unused_results)]
#![allow(
    clippy::all,
    clippy::pedantic,
    clippy::unwrap_used,
    missing_debug_implementations,
    missing_docs,
    reason = "the cases are about forms, not about style"
)]

/// In a macro, so that rustfmt leaves the forms as they are.
macro_rules! forms {
    ($($name:ident)*) => { $(pub mod $name;)* };
}

forms! {
    all_arguments
    async_trait_methods
    bodies_of_one_expression
    forbid_unused
    foreign_attributes
    free_function
    from_macro_rules
    futures_by_hand
    generics
    impl_trait_arguments
    impl_trait_results
    inference
    inherent_methods
    key_constants
    key_expressions
    key_fields_and_methods
    key_formats
    key_literals
    lifetimes
    macro_fragments
    managers
    moved_arguments
    no_implicit_prelude
    on_busy
    on_error
    once
    options_from_expressions
    other_attributes
    patterns
    plain_functions
    raw_identifiers
    result_aliases
    retry
    retry_imports
    send_or_not
    several_keys
    shadowed_names
    stacked
    trait_methods
    transactions
    unicode
    unsafe_function
    used_names
    workarounds
}

#[test]
fn every_form_is_listed() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/pass");
    let files = std::fs::read_dir(folder).unwrap().count();
    let listed = include_str!("main.rs")
        .lines()
        .skip_while(|line| *line != "forms! {")
        .skip(1);
    assert_eq!(listed.take_while(|line| *line != "}").count() + 1, files);
}
