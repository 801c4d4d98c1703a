//! The usual lock in ZooKeeper: numbered ephemeral nodes, of which the lowest has the lock. Everybody else
//! waits for the node below to be gone. Written with the client that dblock uses.

use std::time::Duration;

use anyhow::Context as _;
use zookeeper_client::{Acls, Client as Session, CreateMode};

use super::guarded::{Guarded, client};
use super::{Client, Subject};

pub(super) const SETTINGS: &str = "numbered ephemeral nodes, one session for all tasks; make the node, list, watch the node below if there is one; \
     delete the node";

pub(super) struct Nodes {
    session: Session,
}

struct Task {
    session: Session,
    folder: String,
    has_folder: bool,
}

pub(super) async fn open(url: &str) -> anyhow::Result<Nodes> {
    let hosts = url
        .strip_prefix("zookeeper://")
        .context("the URL begins with `zookeeper://`")?;
    let connector = Session::connector().with_session_timeout(Duration::from_secs(6));
    Ok(Nodes {
        session: connector.connect(hosts).await?,
    })
}

impl Subject for Nodes {
    fn client(&self, key: &str) -> Box<dyn Client> {
        client(Task {
            session: self.session.clone(),
            folder: format!("/recipe/{key}"),
            has_folder: false,
        })
    }
}

impl Guarded for Task {
    type Guard = String;

    async fn acquire(&mut self) -> anyhow::Result<Self::Guard> {
        if !self.has_folder {
            let options = CreateMode::Persistent.with_acls(Acls::anyone_all());
            self.session.mkdir(&self.folder, &options).await?;
            self.has_folder = true;
        }
        let options = CreateMode::EphemeralSequential.with_acls(Acls::anyone_all());
        let start = format!("{}/n-", self.folder);
        let (_, number) = self.session.create(&start, &[], &options).await?;
        // The number has ten digits, so the order of the names is that of the numbers.
        let own = format!("n-{number}");
        loop {
            let others = self.session.list_children(&self.folder).await?;
            let Some(before) = others.into_iter().filter(|name| *name < own).max() else {
                break;
            };
            let before = format!("{}/{before}", self.folder);
            let (found, gone) = self.session.check_and_watch_stat(&before).await?;
            if found.is_some() {
                gone.changed().await;
            }
        }
        Ok(format!("{start}{number}"))
    }

    async fn release(&mut self, guard: Self::Guard) -> anyhow::Result<()> {
        Ok(self.session.delete(&guard, None).await?)
    }
}
