//! A package manager that is a script.

use std::os::unix::fs::PermissionsExt as _;

use super::*;

fn script(folder: &Path, name: &str, text: &str) {
    let file = folder.join(name);
    fs::write(&file, format!("#!/bin/sh\n{text}\n")).unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).unwrap();
}

/// A machine with Debian's package manager, which is a script that writes down how it was called.
fn debian(folder: &Path, apt: &str) -> Machine {
    script(
        folder,
        "apt-get",
        &format!("shift 4; echo \"$@\" >>{}\n{apt}", folder.join("calls").display()),
    );
    script(folder, "apt-cache", "test \"$2\" != etcd-server");
    fs::write(folder.join("debian_version"), "12").unwrap();
    let machine = Machine::with(&folder.join("debian_version"), vec![folder.to_owned()]);
    assert_eq!(machine.manager, Some(Manager::Apt));
    Machine {
        may_install: true,
        ci: false,
        policy: folder.join("policy"),
        pause: Duration::ZERO,
        ..machine
    }
}

/// How apt-get was called.
fn calls(folder: &Path) -> Vec<String> {
    let calls = fs::read_to_string(folder.join("calls")).unwrap_or_default();
    calls.lines().map(str::to_owned).collect()
}

const UPDATE: &str = "-o APT::Update::Error-Mode=any update";

#[tokio::test]
async fn all_that_is_missing_is_installed_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let machine = debian(folder.path(), "");
    let left_out = machine.install(&["postgresql", "zookeeper"], "").await.unwrap();
    assert!(left_out.is_empty());
    assert_eq!(
        calls(folder.path()),
        [UPDATE, "install -y --no-install-recommends postgresql zookeeper"]
    );
}

#[tokio::test]
async fn what_is_not_offered_is_left_out_but_not_in_ci() {
    let folder = tempfile::tempdir().unwrap();
    let machine = debian(folder.path(), "");
    let missing = ["etcd-server", "zookeeper"];
    assert_eq!(machine.install(&missing, "").await.unwrap(), ["etcd-server"]);
    let install = "install -y --no-install-recommends zookeeper";
    assert_eq!(calls(folder.path()), [UPDATE, install]);

    let ci = Machine { ci: true, ..machine };
    assert!(ci.install(&missing, "").await.unwrap().is_empty());
    assert_eq!(
        calls(folder.path())[3],
        "install -y --no-install-recommends etcd-server zookeeper"
    );
}

#[tokio::test]
async fn what_is_offered_and_cannot_be_installed_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let machine = debian(folder.path(), "test $1 != install");
    let error = machine.install(&["zookeeper"], "").await.unwrap_err().to_string();
    assert!(error.contains("zookeeper` failed"), "{error}");
    // Without the lists nobody knows what is offered.
    let machine = debian(folder.path(), "exit 100");
    let error = machine
        .install(&["etcd-server"], "")
        .await
        .unwrap_err()
        .to_string();
    assert!(error.contains("update` failed"), "{error}");
}

#[tokio::test]
async fn the_lists_are_asked_for_again_while_somebody_else_has_their_lock() {
    let folder = tempfile::tempdir().unwrap();
    let once = format!(
        "mkdir {} 2>/dev/null && exit 100",
        folder.path().join("locked").display()
    );
    let machine = debian(folder.path(), &format!("{once}\ntrue"));
    machine.install(&["zookeeper"], "").await.unwrap();
    assert_eq!(calls(folder.path())[..2], [UPDATE, UPDATE]);
}

#[tokio::test]
async fn only_who_is_asked_and_may_installs_and_on_debian_alone() {
    let folder = tempfile::tempdir().unwrap();
    let both = ["postgresql", "mariadb-server"];
    let told = async |may_install, manager| {
        let machine = Machine {
            may_install,
            manager,
            ..debian(folder.path(), "")
        };
        machine.install(&both, "").await.unwrap_err().to_string()
    };
    assert_eq!(
        told(false, Some(Manager::Apt)).await,
        "missing: postgresql, mariadb-server; run: sudo apt-get update && \
         sudo apt-get install -y --no-install-recommends postgresql mariadb-server\n\
         or add `--install`, as root"
    );
    for may_install in [true, false] {
        for (manager, remedy) in [
            (
                Some(Manager::Dnf),
                "run: sudo dnf install -y postgresql-server mariadb-server",
            ),
            (Some(Manager::Brew), "run: brew install postgresql mariadb"),
            (None, "install what Debian calls postgresql mariadb-server"),
        ] {
            assert_eq!(
                told(may_install, manager).await,
                format!("missing: postgresql, mariadb-server; {remedy}")
            );
        }
    }
    assert!(calls(folder.path()).is_empty());
}

#[tokio::test]
async fn what_is_offered_is_not_left_out_where_it_is_not_ours_to_install() {
    let folder = tempfile::tempdir().unwrap();
    let machine = Machine {
        may_install: false,
        ..debian(folder.path(), "")
    };
    let error = machine.install(&["zookeeper", "etcd-server"], "").await;
    let error = error.unwrap_err().to_string();
    assert!(error.starts_with("missing: zookeeper; run: sudo"), "{error}");
    let elsewhere = Machine {
        manager: Some(Manager::Brew),
        ..machine
    };
    assert_eq!(
        elsewhere.install(&["zookeeper"], "").await.unwrap(),
        ["zookeeper"]
    );
}

#[test]
fn apt_counts_on_debian_only() {
    let folder = tempfile::tempdir().unwrap();
    let debian = folder.path().join("debian_version");
    let manager = || Machine::with(&debian, vec![folder.path().to_owned()]).manager;
    assert_eq!(manager(), None);
    script(folder.path(), "apt-get", "");
    assert_eq!(manager(), None);
    fs::write(&debian, "12").unwrap();
    assert_eq!(manager(), Some(Manager::Apt));
}

#[test]
fn a_policy_of_ours_is_removed_and_another_is_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("policy-rc.d");

    let policy = Policy::forbid_services(&path).unwrap();
    let answer = std::process::Command::new("sh").arg(&path).status().unwrap();
    assert_eq!(answer.code(), Some(101));
    let other = fs::File::open(folder.path()).unwrap();
    assert!(other.try_lock().is_err(), "one installation at a time");
    drop(policy);
    // A program that another test is about to start has the file open for a moment.
    other.lock().unwrap();
    drop(other);
    assert!(!path.exists());

    // A process of ours was killed.
    fs::write(&path, NO_SERVICES).unwrap();
    drop(Policy::forbid_services(&path).unwrap());
    assert!(!path.exists());

    fs::write(&path, "theirs").unwrap();
    drop(Policy::forbid_services(&path).unwrap());
    assert_eq!(fs::read_to_string(&path).unwrap(), "theirs");
}
