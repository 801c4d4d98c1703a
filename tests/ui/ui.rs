//! Every form that the attribute accepts, and every message that it gives.
//!
//! The messages are those of one compiler, so this runs with the pinned toolchain only.

/// The toolchain that the messages in `fail` were written with.
const PINNED: &str = "1.95.";

#[test]
fn accepted_forms_and_messages() {
    let tests = trybuild::TestCases::new();
    tests.pass("pass/*.rs");
    if trybuild_toolchain().contains(PINNED) {
        tests.compile_fail("fail/*.rs");
    } else {
        eprintln!("left out: the messages in tests/ui/fail, which are those of Rust {PINNED}x");
    }
}

fn trybuild_toolchain() -> String {
    let rustc = std::env::var("RUSTC").unwrap_or_else(|_| "rustc".into());
    let output = std::process::Command::new(rustc)
        .arg("--version")
        .output()
        .expect("rustc runs");
    String::from_utf8_lossy(&output.stdout).into_owned()
}
