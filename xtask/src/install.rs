//! Packages: a task installs all that it needs and that is not here, once, before anything else. What runs
//! after it only looks at what is there.

use clap::ValueEnum as _;
use dblock_servers::{Kind, Purpose, etcd, faketime, galera, missing, packages};

use crate::steps::Step;
use crate::torture;

/// Installs what these steps need, if that was `asked` for. Returns the packages that are left out, because this machine cannot have
/// them.
///
/// # Errors
/// One of them cannot be installed although it is offered, or nobody asked for it, or only root may.
pub(crate) async fn for_steps(steps: &[Step], asked: bool) -> anyhow::Result<Vec<&'static str>> {
    // Whoever asks for the packages alone wants those of all steps.
    let steps = if steps == [Step::Install] {
        Step::value_variants()
    } else {
        steps
    };
    packages::install(|| of_steps(steps), &Purpose::Tests.otherwise(), asked).await
}

fn of_steps(steps: &[Step]) -> Vec<&'static str> {
    let mut packages = Vec::new();
    if steps.iter().any(|step| step.builds_all()) {
        packages.extend(etcd::missing_compiler());
    }
    if steps.contains(&Step::Test) {
        let (wanted, _) = Purpose::Tests.wanted();
        packages.extend(missing(&wanted, Purpose::Tests));
        if wanted.contains(&Kind::MySql) {
            packages.extend(galera::missing());
        }
    }
    if steps.contains(&Step::Torture) {
        packages.extend(of_torture(&torture::kinds()));
    }
    packages
}

/// What is not here of what a torture of these servers needs.
pub(crate) fn of_torture(kinds: &[Kind]) -> Vec<&'static str> {
    let mut packages = missing(kinds, Purpose::Torture);
    packages.extend(etcd::missing_compiler());
    // The clock of a file's locks is the host's, which nobody sets.
    packages.extend((!kinds.is_empty() && faketime().is_none()).then_some("libfaketime"));
    packages
}
