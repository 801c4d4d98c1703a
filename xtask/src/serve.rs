//! `cargo xtask servers`: throw-away servers to run tests on by hand.

use std::process::ExitCode;

use dblock_servers::{Purpose, Servers, missing, packages};

/// The servers for the tests, until a signal ends this future.
pub(crate) async fn run(install: bool) -> anyhow::Result<ExitCode> {
    let tests = Purpose::Tests;
    packages::install(|| missing(tests.kinds(), tests), "", install).await?;
    let servers = Servers::start(Purpose::Tests.kinds(), Purpose::Tests).await?;
    eprintln!(
        "{} run until Ctrl-C. In another terminal:",
        servers.names().join(" and ")
    );
    println!("{}", exports(servers.variables()));
    std::future::pending().await
}

/// Lines for a shell. The URLs hold nothing that a shell would interpret inside single quotes.
fn exports<'a>(variables: impl Iterator<Item = (&'static str, &'a str)>) -> String {
    let lines = variables.map(|(name, url)| format!("export {name}='{url}'"));
    lines.collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::exports;

    #[test]
    fn exports_are_lines_for_a_shell() {
        let variables = [("A_URL", "postgres://u:p@h:1/d"), ("B_URL", "mysql://u:p@h:2/d")];
        assert_eq!(
            exports(variables.into_iter()),
            "export A_URL='postgres://u:p@h:1/d'\nexport B_URL='mysql://u:p@h:2/d'"
        );
    }
}
