//! Each store builds alone, and brings nothing of another one.

use anyhow::ensure;

use crate::command::{Way, cargo, output};

/// The stores that stand behind a feature, and the driver that each brings.
const STORES: [(&str, &str); 3] = [
    ("mysql", "sqlx-mysql"),
    ("postgres", "sqlx-postgres"),
    ("sqlite", "sqlx-sqlite"),
];

pub(crate) async fn check(way: Way) -> anyhow::Result<()> {
    // What the stores share alone is for a program that keeps its locks elsewhere, such as one with `dblock-axum`.
    let sets = STORES
        .iter()
        .map(|(store, driver)| (*store, Some(*driver)))
        .chain([("", None), ("sql", None)]);
    for (features, own) in sets {
        let alone = ["-p", "dblock", "--no-default-features", "--features", features];
        let tree =
            output(cargo(["tree", "-e", "normal", "--prefix", "none", "-f", "{p}"]).args(alone)).await?;
        let drivers = drivers(&tree);
        ensure!(
            drivers == Vec::from_iter(own),
            "with the features `{features}` the drivers are {drivers:?}, not only {own:?}"
        );
        way.run(cargo(["clippy"]).args(alone).args(["--", "-D", "warnings"]))
            .await?;
    }
    Ok(())
}

/// The drivers in the output of `cargo tree`, each once.
fn drivers(tree: &str) -> Vec<&'static str> {
    let drivers = STORES.iter().map(|(_, driver)| *driver);
    drivers
        .filter(|driver| tree.lines().any(|line| line.split(' ').next() == Some(driver)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::drivers;

    #[test]
    fn drivers_are_read_from_the_tree() {
        let tree = "dblock v0.1.0 (/x/sqlx-mysql)\nsqlx v0.9.0\nsqlx-core v0.9.0\nsqlx-sqlite v0.9.0\n\
                    sqlx-core v0.9.0 (*)\nsqlx-sqlite v0.9.0 (*)\n";
        assert_eq!(drivers(tree), ["sqlx-sqlite"]);
        assert_eq!(
            drivers("sqlx-mysql v1\nsqlx-postgres v1"),
            ["sqlx-mysql", "sqlx-postgres"]
        );
        assert!(drivers("dblock v0.1.0\ntokio v1.54.0").is_empty());
    }
}
