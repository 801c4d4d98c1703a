//! Every message that the attributes give.
//!
//! The messages are those of one compiler, so this runs with the pinned toolchain only.

/// The toolchain that the messages in `fail` were written with.
const PINNED: &str = "1.95.";

#[test]
fn messages() {
    if toolchain().contains(PINNED) {
        // The forms that pass are the test `pass`: without them trybuild only checks the dependencies.
        trybuild::TestCases::new().compile_fail("fail/*.rs");
    } else {
        eprintln!("left out: the messages in tests/ui/fail, which are those of Rust {PINNED}x");
    }
}

/// The page of common mistakes shows what the compiler says.
#[test]
fn the_page_of_mistakes_is_true() {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
    let page = std::fs::read_to_string(format!("{root}/docs/attribute.md")).expect("the page is there");
    let mut shown = 0;
    for part in page.split("<!-- ").skip(1) {
        let (path, rest) = part.split_once(" -->\n```text\n").expect("a message follows");
        let (message, _) = rest.split_once("\n```").expect("the message ends");
        let said = std::fs::read_to_string(format!("{root}/{path}")).expect("the message has a test");
        assert!(
            said.contains(message),
            "{path} says:\n{said}\nbut the page shows:\n{message}"
        );
        shown += 1;
    }
    assert_eq!(shown, 19);
}

fn toolchain() -> String {
    let rustc = std::env::var("RUSTC").unwrap_or_else(|_| "rustc".into());
    let output = std::process::Command::new(rustc)
        .arg("--version")
        .output()
        .expect("rustc runs");
    String::from_utf8_lossy(&output.stdout).into_owned()
}
