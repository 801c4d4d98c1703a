//! Looks for what could keep locks on this server from working, or make it forget them.

use dblock_core::Finding;
use dblock_core::store::StoreError;

use crate::deployment::Deployment;
use crate::server::Info;
use crate::session::Server;

/// Looks at each server of a cluster, and else at the one.
pub(crate) async fn diagnose(deployment: &Deployment) -> Result<Vec<Finding>, StoreError> {
    let mut findings = Vec::new();
    for (address, server) in deployment.servers().await? {
        for mut finding in diagnose_server(&server).await? {
            if !address.is_empty() {
                finding.found = format!("{address}: {}", finding.found);
            }
            findings.push(finding);
        }
    }
    Ok(findings)
}

/// A server that cannot keep locks is refused when the connection is opened, so what is looked at here works.
async fn diagnose_server(server: &Server) -> Result<Vec<Finding>, StoreError> {
    let text: String = server.ask(&redis::cmd("INFO")).await?;
    let info = Info::read(&text);
    // A managed server may hide its configuration.
    let mut ask = redis::cmd("CONFIG");
    let sync = server.ask::<Vec<String>>(ask.arg("GET").arg("appendfsync")).await;
    let sync = sync.ok().and_then(|mut pair| pair.pop());
    Ok(vec![
        version(&info),
        durability(&info, sync.as_deref()),
        replicas(&info),
    ])
}

fn version(info: &Info<'_>) -> Finding {
    let (name, version) = match info.get("valkey_version") {
        "" => ("Redis", info.get("redis_version")),
        version => ("Valkey", version),
    };
    Finding::fine(
        "version",
        format!("{name} {version}"),
        "Redis 6.2 or later, or Valkey, is needed",
    )
}

fn durability(info: &Info<'_>, sync: Option<&str>) -> Finding {
    let remedy = "set `appendonly yes` and `appendfsync always`, or make sure that work under a lock checks its fence token";
    let meaning = "a grant is on the disk before it is answered, so a restart of the server keeps it";
    match (info.get("aof_enabled"), sync) {
        ("1", Some("always")) => Finding::fine("durability", "appendonly yes, appendfsync always", meaning),
        ("1", _) => Finding::note(
            "durability",
            format!("appendonly yes, appendfsync {}", sync.unwrap_or("unknown")),
            "a crash of the server's machine may forget the grants of about the last second, and a second owner may enter then",
            remedy,
        ),
        _ => Finding::note(
            "durability",
            "appendonly no",
            "a restart of the server forgets the grants since its last snapshot, and a second owner may enter then",
            remedy,
        ),
    }
}

fn replicas(info: &Info<'_>) -> Finding {
    match info.get("connected_slaves") {
        "" | "0" => Finding::fine("replicas", "none", "no fail-over can forget a grant"),
        count => Finding::note(
            "replicas",
            format!("{count}, which get each write after it was answered"),
            "a fail-over may forget the last grants, and a second owner may enter then",
            "make sure that work under a lock checks its fence token",
        ),
    }
}

#[cfg(test)]
mod tests {
    use dblock_core::Severity;

    use super::*;

    #[test]
    fn only_a_log_that_is_synced_at_once_is_fine() {
        let on = Info::read("aof_enabled:1\nconnected_slaves:2");
        let off = Info::read("aof_enabled:0\nconnected_slaves:0");
        assert_eq!(durability(&on, Some("always")).severity, Severity::Fine);
        assert_eq!(durability(&on, Some("everysec")).severity, Severity::Note);
        assert_eq!(durability(&on, None).severity, Severity::Note);
        assert_eq!(durability(&off, Some("always")).severity, Severity::Note);
        assert_eq!(replicas(&on).severity, Severity::Note);
        assert_eq!(replicas(&off).severity, Severity::Fine);
    }
}
