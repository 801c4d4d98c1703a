//! The messages that only a user sees whose dblock has another name, or no database.

#[test]
fn messages() {
    // Those of one compiler.
    let rustc = std::env::var("RUSTC").unwrap_or_else(|_| "rustc".into());
    let output = std::process::Command::new(rustc).arg("--version").output();
    let output = output.expect("rustc runs");
    if String::from_utf8_lossy(&output.stdout).contains("1.95.") {
        trybuild::TestCases::new().compile_fail("fail/*.rs");
    } else {
        eprintln!("left out: the messages in tests/renamed/fail, which are those of Rust 1.95.x");
    }
}
