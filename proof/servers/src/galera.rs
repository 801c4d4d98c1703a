//! MariaDB with Galera: three nodes, for somebody who makes them fail.

use std::path::Path;
use std::time::Duration;

use anyhow::Context as _;
use rustix::process::Signal;
use tokio::time::{Instant, sleep};

use crate::launch::free_port;
use crate::mariadb::{self, Place, Programs, Start};
use crate::{Purpose, Server, programs, random_password, temporary_folder};

/// How long the nodes may take until all of them are in step.
const LIMIT: Duration = Duration::from_mins(1);

const ASK_EVERY: Duration = Duration::from_millis(100);

/// The replication, where distributions put it.
const LIBRARIES: [&str; 5] = [
    "/usr/lib/galera/libgalera_smm.so",
    "/usr/lib/galera-4/libgalera_smm.so",
    "/usr/lib64/galera/libgalera_smm.so",
    "/usr/lib64/galera-4/libgalera_smm.so",
    "/usr/lib/libgalera_smm.so",
];

/// Begins the cluster, or starts a node as MariaDB's unit for systemd does: one that was killed first looks
/// up how far it had come. Then it gets what it has missed, and not a copy of everything, for which another
/// node would have to stand still.
const START: &str = r#"
if [ -e first.sql ]; then
    exec "$@" --wsrep-new-cluster
fi
if [ -e data/grastate.dat ]; then
    position=$("$@" --wsrep-recover 2>&1 | sed -n 's/.*WSREP: Recovered position: *//p')
fi
exec "$@" ${position:+"--wsrep-start-position=$position"}
"#;

/// A node sees all three, and takes part.
const IS_IN_STEP: &str = "SHOW GLOBAL STATUS WHERE (Variable_name = 'wsrep_cluster_size' AND Value = '3') \
    OR (Variable_name = 'wsrep_local_state_comment' AND Value = 'Synced')";

/// Three servers that replicate to each other. Each takes writes.
#[derive(Debug)]
pub struct Galera {
    programs: Programs,
    password: String,
    places: [Place; 3],
    /// The nodes.
    pub nodes: [Server; 3],
}

/// The ports of a node beside that of its clients.
#[derive(Debug, Clone, Copy)]
struct Ports {
    group: u16,
    missed: u16,
    copy: u16,
}

impl Ports {
    fn free() -> anyhow::Result<Self> {
        Ok(Self {
            group: free_port()?,
            missed: free_port()?,
            copy: free_port()?,
        })
    }

    fn options(self, name: usize, library: &str, cluster: &[Self]) -> Vec<String> {
        let Self { group, missed, copy } = self;
        let others: Vec<_> = cluster
            .iter()
            .map(|other| format!("127.0.0.1:{}", other.group))
            .collect();
        vec![
            "--wsrep-on=ON".to_owned(),
            "--binlog-format=ROW".to_owned(),
            format!("--wsrep-provider={library}"),
            "--wsrep-cluster-name=dblock".to_owned(),
            format!("--wsrep-cluster-address=gcomm://{}", others.join(",")),
            format!("--wsrep-node-name={name}"),
            format!("--wsrep-node-address=127.0.0.1:{group}"),
            "--wsrep-sst-method=rsync".to_owned(),
            format!("--wsrep-sst-receive-address=127.0.0.1:{copy}"),
            format!(
                "--wsrep-provider-options=base_port={group};gmcast.listen_addr=tcp://127.0.0.1:{group};\
                 ist.recv_addr=127.0.0.1:{missed};gcache.size=16M"
            ),
            // Less to copy.
            "--innodb-log-file-size=16M".to_owned(),
        ]
    }
}

impl Galera {
    /// Starts all three.
    ///
    /// # Errors
    /// MariaDB or Galera is not installed, or a node does not start.
    pub async fn start(purpose: Purpose) -> anyhow::Result<Self> {
        let programs = Programs::find().filter(Programs::is_mariadb);
        let programs = programs.context("MariaDB is not installed")?;
        let library = library().context("Galera is not installed")?;
        let password = random_password()?;
        let ports = [Ports::free()?, Ports::free()?, Ports::free()?];
        let (first_top, second_top, third_top) =
            (temporary_folder()?, temporary_folder()?, temporary_folder()?);
        let places = [
            Place::new(&first_top)?,
            Place::new(&second_top)?,
            Place::new(&third_top)?,
        ];
        programs.make_files(&places[0]).await?;
        // The others get theirs from the first one.
        for place in &places[1..] {
            place.account.folder(&place.folder, "data")?;
        }
        let serve = async |node: usize, top| {
            let start = Start {
                script: Some(START),
                options: ports[node].options(node, library, &ports),
            };
            let launch = programs.launch(&places[node], &password, purpose, start);
            let port = free_port()?;
            let url = mariadb::url(&password, port);
            Server::start_on(launch, Signal::TERM, top, port, url).await
        };
        let statements = programs.first_statements(&places[0], &password)?;
        let first = serve(0, first_top).await?;
        std::fs::remove_file(&statements)?;
        // One after the other, because each needs another one that copies nothing just then.
        let second = serve(1, second_top).await?;
        let third = serve(2, third_top).await?;
        let galera = Self {
            programs,
            password,
            places,
            nodes: [first, second, third],
        };
        galera.until_in_step().await?;
        Ok(galera)
    }

    /// The URL of a superuser, with all nodes from this one on.
    pub fn url(&self, first: usize) -> String {
        let mut all = self.nodes.each_ref().map(Server::address);
        all.rotate_left(first);
        let node = &self.nodes[first];
        node.url().replace(&node.address(), &all.join(","))
    }

    /// Starts nodes again that were killed. Those of a cluster without a quorum wait for each other.
    ///
    /// # Errors
    /// One of them does not start.
    pub async fn restart(&mut self, nodes: &[usize]) -> anyhow::Result<()> {
        let [first, second, third] = &mut self.nodes;
        let again = async |node: usize, server: &mut Server| {
            if nodes.contains(&node) {
                server.restart().await
            } else {
                Ok(())
            }
        };
        tokio::try_join!(again(0, first), again(1, second), again(2, third))?;
        Ok(())
    }

    /// Waits until each node sees the others and has what they have.
    ///
    /// # Errors
    /// That takes too long.
    pub async fn until_in_step(&self) -> anyhow::Result<()> {
        let deadline = Instant::now() + LIMIT;
        for node in 0..self.nodes.len() {
            loop {
                let said = match self.answer(node, IS_IN_STEP).await {
                    Ok(said) if said.lines().count() == 2 => break,
                    Ok(said) => said,
                    Err(error) => error.to_string(),
                };
                anyhow::ensure!(Instant::now() < deadline, "node {node} is not in step: {said}");
                sleep(ASK_EVERY).await;
            }
        }
        Ok(())
    }

    /// The node with the most clients.
    ///
    /// # Errors
    /// None answers.
    pub async fn in_use(&self) -> anyhow::Result<usize> {
        let mut clients = Vec::new();
        for node in 0..self.nodes.len() {
            let count = self.answer(
                node,
                "SELECT COUNT(*) FROM information_schema.processlist WHERE db = DATABASE()",
            );
            if let Ok(count) = count.await {
                clients.push((count.trim().parse::<u32>()?, node));
            }
        }
        let most = clients.into_iter().max_by_key(|(count, _)| *count);
        Ok(most.context("no node answers")?.1)
    }

    async fn answer(&self, node: usize, query: &str) -> anyhow::Result<String> {
        let port = self.nodes[node].port();
        self.programs
            .answer(&self.places[node], &self.password, port, query)
            .await
    }
}

/// Whether all programs are there.
pub fn is_installed() -> bool {
    Programs::find().is_some_and(|programs| programs.is_mariadb())
        && library().is_some()
        && programs::in_path("rsync").is_some()
}

/// Debian's packages of what is not here.
pub fn missing() -> Vec<&'static str> {
    let library = library().is_none().then_some("galera-4");
    let rsync = programs::in_path("rsync").is_none().then_some("rsync");
    match Programs::find() {
        // Galera is a part of MariaDB.
        Some(programs) if !programs.is_mariadb() => Vec::new(),
        Some(_) => library.into_iter().chain(rsync).collect(),
        None => ["mariadb-server"]
            .into_iter()
            .chain(library)
            .chain(rsync)
            .collect(),
    }
}

fn library() -> Option<&'static str> {
    LIBRARIES.into_iter().find(|library| Path::new(library).is_file())
}
