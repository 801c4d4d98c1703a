//! Three servers that agree on everything, of which one leads.

use anyhow::Context as _;

use crate::launch::ask_letters;
use crate::{Kind, Purpose, Server, etcd, zookeeper};

/// Three servers of ZooKeeper or etcd, for somebody who may kill and stop them.
#[derive(Debug)]
pub struct Ensemble {
    /// The servers, in the order of the URL.
    pub servers: [Server; 3],
    pub(crate) url: String,
    /// Letters to which the leader answers with a text that has this in it.
    pub(crate) leads: (&'static str, &'static str),
}

impl Ensemble {
    /// A fresh ensemble, with a leader.
    ///
    /// # Errors
    /// The programs are not installed, a server does not start, or servers of this kind form no ensemble.
    pub async fn fresh(kind: Kind, purpose: Purpose) -> anyhow::Result<Self> {
        let missing = || format!("the programs of {kind:?} are not installed");
        match kind {
            Kind::ZooKeeper => {
                let programs = zookeeper::Programs::find().with_context(missing)?;
                programs.ensemble(purpose).await
            }
            Kind::Etcd => {
                let programs = etcd::Programs::find().with_context(missing)?;
                programs.ensemble().await
            }
            _ => anyhow::bail!("there is no ensemble of {kind:?}"),
        }
    }

    /// The URL that names all servers of a ZooKeeper: `zookeeper://…,…,…`. For etcd, the URLs of all members:
    /// `http://…,http://…,http://…`.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Starts those that were killed, side by side: without a majority none of them gets ready.
    ///
    /// # Errors
    /// One does not start.
    pub async fn restart_killed(&mut self) -> anyhow::Result<()> {
        let [one, two, three] = &mut self.servers;
        tokio::try_join!(
            one.restart_if_killed(),
            two.restart_if_killed(),
            three.restart_if_killed()
        )?;
        Ok(())
    }

    /// The place of the server that leads at present, if one says so. A leader that was stopped says so for a
    /// moment after it was woken, though another one leads.
    pub async fn leader(&self) -> Option<usize> {
        let (letters, sign) = self.leads;
        for (place, server) in self.servers.iter().enumerate() {
            let said = ask_letters(server.port(), letters).await;
            if matches!(said, Ok(text) if text.contains(sign)) {
                return Some(place);
            }
        }
        None
    }
}
