//! The choice among servers, without servers.

use super::*;

/// A server: how long it takes to answer, and its history; `None` for a standby. Histories from 100 on are of
/// another cluster.
type Server = (u64, Result<Option<i64>, StoreErrorKind>);

const AWAY: Server = (0, Err(StoreErrorKind::Unreachable));

#[derive(Debug)]
struct Connection(Option<i64>);

impl Alive for Connection {
    async fn is_alive(&mut self) -> bool {
        true
    }

    async fn history(&mut self) -> Result<Option<History>, StoreError> {
        let history = |number| History {
            cluster: Some(7 + number / 100),
            number,
            ..History::default()
        };
        Ok(self.0.map(history))
    }
}

/// Servers that no other test has.
fn names(of: &str, count: usize) -> Servers {
    Servers::new("none", (1..=count).map(|n| format!("{of}{n}").into()).collect())
}

/// The server of a new connection.
async fn opened(servers: &Servers, all: &[Server]) -> Result<usize, StoreError> {
    connected(servers, all).await.map(|found| found.server)
}

async fn connected(servers: &Servers, all: &[Server]) -> Result<Connected<Connection>, StoreError> {
    let opening = |server: usize| -> Opening<Connection> {
        let (takes, answer) = all[server];
        Box::pin(async move {
            tokio::time::sleep(Duration::from_millis(takes)).await;
            answer.map(Connection).map_err(|kind| StoreError::new(kind, "no"))
        })
    };
    servers.open(opening).await
}

#[tokio::test(start_paused = true)]
async fn the_newest_history_wins_and_then_the_chosen_server_does() {
    let servers = names("newest", 3);
    // The server with the newest history answers last.
    let all = [(0, Ok(Some(1))), (1, Ok(None)), (950, Ok(Some(2)))];
    assert_eq!(opened(&servers, &all).await.unwrap(), 2);
    // As long as nothing fails, no server is asked again.
    let all = [(0, Ok(Some(3))), (0, Ok(Some(3))), (0, Ok(Some(2)))];
    assert_eq!(opened(&servers, &all).await.unwrap(), 2);
    servers.doubt();
    assert_eq!(opened(&servers, &all).await.unwrap(), 0);
    servers.doubt();
    let same = [(9, Ok(Some(3))), (0, Ok(Some(3))), (0, Ok(Some(3)))];
    assert_eq!(opened(&servers, &[AWAY, same[1], same[2]]).await.unwrap(), 1);
    servers.doubt();
    assert_eq!(opened(&servers, &same).await.unwrap(), 1, "it stays");
}

#[tokio::test(start_paused = true)]
async fn an_old_primary_is_used_by_nobody_who_has_seen_the_new_one() {
    let (one, two) = (names("old", 2), names("old", 2));
    let before = [(0, Ok(Some(1))), (0, Ok(None))];
    let (first, second) = (connected(&one, &before).await, connected(&two, &before).await);
    let (first, second) = (first.unwrap(), second.unwrap());
    one.doubt();
    let found = connected(&one, &[(60_000, Ok(Some(1))), (0, Ok(Some(2)))])
        .await
        .unwrap();
    assert_eq!((found.server, found.age.is_outdated()), (1, false));
    assert!(first.age.is_outdated(), "its connection is still open");
    // The old primary goes on, and the new one does not answer.
    one.doubt();
    let alone = [(0, Ok(Some(1))), AWAY];
    let error = opened(&one, &alone).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Unreachable);
    assert!(
        error.to_string().contains("old1: it is an old primary"),
        "{error}"
    );
    // So it is for another manager of this process, although nothing has failed there yet.
    assert!(second.age.is_outdated());
    opened(&two, &alone).await.unwrap_err();
    let both = [(0, Ok(Some(1))), (250, Ok(Some(2)))];
    assert_eq!(opened(&two, &both).await.unwrap(), 1);
    // A later promotion counts; so does another cluster at the same addresses.
    one.doubt();
    assert_eq!(opened(&one, &[(0, Ok(Some(3))), AWAY]).await.unwrap(), 0);
    one.newest(Some(8)).store(1, Ordering::Relaxed);
    assert_eq!(one.newest(Some(7)).load(Ordering::Relaxed), 3);
}

#[tokio::test(start_paused = true)]
async fn a_silent_server_keeps_nobody_waiting() {
    let since = Instant::now();
    let all = [(60_000, Ok(Some(1))), (0, Ok(Some(1)))];
    assert_eq!(opened(&names("silent", 2), &all).await.unwrap(), 1);
    assert_eq!(since.elapsed(), OTHERS);
}

#[tokio::test(start_paused = true)]
async fn without_a_primary_each_server_is_named() {
    let refused = (0, Err(StoreErrorKind::Refused));
    let error = opened(&names("db", 2), &[refused, (60_000, Ok(None))])
        .await
        .unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Unreachable);
    let said =
        "none of the servers takes writes now: db1: no; db2: it did not accept a connection within 1.8s";
    assert_eq!(error.to_string(), said);
    let error = opened(&names("db", 2), &[refused, refused]).await.unwrap_err();
    assert_eq!(
        error.kind(),
        StoreErrorKind::Refused,
        "trying again does not help"
    );
}

#[tokio::test(start_paused = true)]
async fn servers_that_are_no_copies_of_each_other_are_not_compared() {
    let servers = names("unrelated", 3);
    let other = [(0, Ok(Some(1))), (0, Ok(Some(107))), AWAY];
    let error = opened(&servers, &other).await.unwrap_err();
    let said = "unrelated1 and unrelated2 take writes, and are no copies of each other";
    assert!(error.to_string().contains(said), "{error}");
    assert_eq!(opened(&servers, &[other[0], AWAY, AWAY]).await.unwrap(), 0);
}

/// A node of a cluster that has agreed on another one.
struct Node(i64);

impl Alive for Node {
    async fn is_alive(&mut self) -> bool {
        true
    }

    async fn history(&mut self) -> Result<Option<History>, StoreError> {
        Ok(Some(History {
            stands_by: true,
            member: self.0,
            ..History::default()
        }))
    }

    async fn claim(&mut self, _: i64, members: usize) -> Result<bool, StoreError> {
        Err(StoreError::new(
            StoreErrorKind::Unreachable,
            format!("{members} answered"),
        ))
    }
}

#[tokio::test(start_paused = true)]
async fn a_node_that_answers_at_two_addresses_is_one() {
    for (nodes, members) in [([1, 1, 2], "2 answered"), ([1, 1, 1], "1 answered")] {
        let servers = names("alias", 3);
        let opening = |server: usize| -> Opening<Node> { Box::pin(ready(Ok(Node(nodes[server])))) };
        let error = servers.open(opening).await.err().unwrap();
        assert!(error.to_string().contains(members), "{error}");
    }
}
