//! A throw-away Redis Cluster of three servers without replicas.

use crate::launch::free_port;
use crate::redis::{Programs, persistence};
use crate::{Purpose, Server, temporary_folder};

/// Fewer are no cluster.
const SERVERS: usize = 3;

impl Programs {
    /// Starts the servers and gives each a third of the slots. The first has the others with it.
    pub(crate) async fn start_cluster(&self, password: &str, purpose: Purpose) -> anyhow::Result<Server> {
        let mut servers = Vec::new();
        for _ in 0..SERVERS {
            // By default the second port is 10,000 above the first, where connections get theirs.
            let settings = format!(
                "requirepass {password}\nmasterauth {password}\n{}cluster-enabled yes\ncluster-port {}\n\
                 cluster-node-timeout 15000\ncluster-require-full-coverage no\n",
                persistence(purpose),
                free_port()?
            );
            let server = self.start_with(temporary_folder()?, password, &settings, &[]);
            servers.push(Box::pin(server).await?);
        }
        let addresses: Vec<_> = servers.iter().map(Server::address).collect();
        let mut words = ["--cluster", "create"].map(str::to_owned).to_vec();
        words.extend(addresses.iter().cloned());
        words.push("--cluster-yes".to_owned());
        self.client(password, &words).await?;
        // A server waits for a moment after its start before it takes part.
        for address in &addresses {
            self.until(password, address, &["CLUSTER", "INFO"], "cluster_state:ok")
                .await?;
        }
        let url = format!("redis+cluster://:{password}@{}", addresses.join(","));
        let first = servers.remove(0);
        Ok(first.with(servers, format!("Redis Cluster {}", self.version()), url))
    }
}
