//! A TCP proxy between a manager and a real server, on a thread of its own, that breaks connections as it
//! is told.

#![allow(clippy::missing_panics_doc, reason = "a test fails by panicking")]

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{oneshot, watch};
use tokio::time::{sleep, timeout};

/// How long the server must be silent to have finished its reply.
const QUIET: Duration = Duration::from_millis(60);

/// What only a session of a store's own sends: when it begins, and on Redis with each request.
const OWN: [&[u8]; 3] = [b"dblock.session", b"GET_LOCK('dblock:", b"EVALSHA"];

/// The proxy's way with all connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Traffic {
    /// Forwards.
    Flows,
    /// Forwards, each reply after so long.
    Slow(Duration),
    /// Accepts connections and forwards nothing, not even later.
    BlackHole,
    /// Lets the server have every request and swallows its replies for good.
    Deaf,
    /// Closes every connection, new ones too.
    Refused,
}

/// The proxy's way with one request that it was told to look out for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trick {
    /// The server gets it and finishes its reply, which is thrown away; then the connection is closed.
    LoseReply,
    /// The connection is closed before the server gets it.
    LoseRequest,
    /// The client's connection is closed; the server gets the request when [`Proxy::deliver`] is called.
    DeliverLate,
    /// The server gets it twice, and the client the first answer. Only in a session of a store's own: a user's transaction
    /// would do its work twice.
    Repeat,
    /// As [`Repeat`](Self::Repeat), but after the answer the client's connection is closed, and the server gets the request again
    /// when [`Proxy::deliver`] is called.
    RepeatLate,
    /// The server gets it, and nothing comes back on this connection any more.
    Silence,
    /// The server gets neither it nor anything after it, and the connection stays open.
    Swallow,
}

/// Says whether bytes on their way to the server are those to look out for.
pub type Test = Box<dyn Fn(&[u8]) -> bool + Send>;

/// A running proxy. It ends when it is dropped.
#[derive(Debug)]
pub struct Proxy {
    address: SocketAddr,
    shared: Arc<Shared>,
    _stop: oneshot::Sender<()>,
}

struct Shared {
    server: SocketAddr,
    traffic: watch::Sender<Traffic>,
    delivery: watch::Sender<usize>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    look_out: Option<(Test, Trick)>,
    refused: Option<Test>,
    /// How often the trick was played.
    played: usize,
    /// Requests that are kept for [`Proxy::deliver`].
    late: usize,
    /// Open connections: their number, and the port by which the server knows them.
    open: HashMap<usize, u16>,
    opened: usize,
    most_open: usize,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared")
            .field("server", &self.server)
            .finish_non_exhaustive()
    }
}

impl Proxy {
    /// Starts a proxy for `server`.
    pub fn start(server: SocketAddr) -> Self {
        let shared = Arc::new(Shared {
            server,
            traffic: watch::Sender::new(Traffic::Flows),
            delivery: watch::Sender::new(0),
            state: Mutex::default(),
        });
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("a bound listener has an address");
        listener
            .set_nonblocking(true)
            .expect("a listener can be non-blocking");
        let (stop, stopped) = oneshot::channel::<()>();
        let proxy = Arc::clone(&shared);
        let work = async move {
            let listener = TcpListener::from_std(listener).expect("the runtime takes the listener");
            let serve = async {
                while let Ok((client, _)) = listener.accept().await {
                    tokio::spawn(Arc::clone(&proxy).connection(client));
                }
            };
            tokio::select! {
                () = serve => {}
                _ = stopped => {}
            }
        };
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a runtime for the proxy");
        std::thread::spawn(move || runtime.block_on(work));
        Self {
            address,
            shared,
            _stop: stop,
        }
    }

    /// Where the proxy listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Changes what happens to all connections.
    pub fn set(&self, traffic: Traffic) {
        self.shared.traffic.send_replace(traffic);
    }

    /// Plays `trick` on the next request that `test` is true of.
    pub fn look_out(&self, trick: Trick, test: Test) {
        self.shared.state().look_out = Some((test, trick));
    }

    /// Looks out for nothing any more.
    pub fn look_away(&self) {
        self.shared.state().look_out = None;
    }

    /// Closes a connection instead of forwarding a request that `test` is true of, from now on.
    pub fn refuse(&self, test: Test) {
        self.shared.state().refused = Some(test);
    }

    /// How many tricks were played so far.
    pub fn played(&self) -> usize {
        self.shared.state().played
    }

    /// Lets the server have the requests of [`Trick::DeliverLate`] and [`Trick::RepeatLate`]. Returns when it has carried them out.
    pub async fn deliver(&self) {
        self.shared.delivery.send_modify(|count| *count += 1);
        while self.shared.state().late > 0 {
            sleep(Duration::from_millis(5)).await;
        }
    }

    /// Ports by which the server knows the open connections.
    pub fn ports(&self) -> Vec<u16> {
        self.shared.state().open.values().copied().collect()
    }

    /// The most connections that were open at once.
    pub fn most_open(&self) -> usize {
        self.shared.state().most_open
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn connection(self: Arc<Self>, client: TcpStream) {
        if *self.traffic.borrow() == Traffic::Refused {
            return reset(&client);
        }
        let Ok(server) = TcpStream::connect(self.server).await else {
            return;
        };
        let _ = (client.set_nodelay(true), server.set_nodelay(true));
        let number = {
            let mut state = self.state();
            state.opened += 1;
            let number = state.opened;
            state
                .open
                .insert(number, server.local_addr().map_or(0, |address| address.port()));
            state.most_open = state.most_open.max(state.open.len());
            number
        };
        self.forward(client, server).await;
        self.state().open.remove(&number);
    }

    async fn forward(&self, client: TcpStream, server: TcpStream) {
        let (mut from_client, mut to_client) = client.into_split();
        let (mut from_server, mut to_server) = server.into_split();
        let mut traffic = self.traffic.subscribe();
        let (mut up, mut down) = (vec![0; 64 * 1024], vec![0; 64 * 1024]);
        // Once something was swallowed, the rest of the stream is worth nothing.
        let mut swallowed = *traffic.borrow_and_update() == Traffic::BlackHole;
        let mut deaf = *traffic.borrow() == Traffic::Deaf;
        let mut is_of_store = false;
        loop {
            tokio::select! {
                read = from_client.read(&mut up) => {
                    let Ok(length @ 1..) = read else { return };
                    if swallowed {
                        continue;
                    }
                    is_of_store |= OWN.iter().any(|mark| up[..length].windows(mark.len()).any(|window| window == *mark));
                    match self.trick(&up[..length], is_of_store) {
                        None => {
                            if to_server.write_all(&up[..length]).await.is_err() {
                                return;
                            }
                        }
                        Some(Trick::LoseRequest) => return,
                        Some(Trick::Swallow) => swallowed = true,
                        Some(Trick::Silence) => {
                            let _ = to_server.write_all(&up[..length]).await;
                            swallowed = true;
                        }
                        Some(Trick::LoseReply) => {
                            let _ = to_server.write_all(&up[..length]).await;
                            pass_answer(&mut from_server, None).await;
                            return;
                        }
                        Some(Trick::Repeat) => {
                            for client in [Some(&mut to_client), None] {
                                if to_server.write_all(&up[..length]).await.is_err()
                                    || !pass_answer(&mut from_server, client).await
                                {
                                    return;
                                }
                            }
                        }
                        Some(trick @ (Trick::DeliverLate | Trick::RepeatLate)) => {
                            let mut delivery = self.delivery.subscribe();
                            self.state().late += 1;
                            if trick == Trick::RepeatLate {
                                let _ = to_server.write_all(&up[..length]).await;
                                pass_answer(&mut from_server, Some(&mut to_client)).await;
                            }
                            drop((from_client, to_client));
                            let _ = delivery.changed().await;
                            let _ = to_server.write_all(&up[..length]).await;
                            pass_answer(&mut from_server, None).await;
                            self.state().late -= 1;
                            return;
                        }
                    }
                }
                read = from_server.read(&mut down) => {
                    let Ok(length @ 1..) = read else { return };
                    if swallowed || deaf {
                        continue;
                    }
                    let pause = match *traffic.borrow() {
                        Traffic::Slow(pause) => pause,
                        _ => Duration::ZERO,
                    };
                    sleep(pause).await;
                    if to_client.write_all(&down[..length]).await.is_err() {
                        return;
                    }
                }
                _ = traffic.changed() => match *traffic.borrow_and_update() {
                    Traffic::Refused => return,
                    Traffic::BlackHole => swallowed = true,
                    Traffic::Deaf => deaf = true,
                    Traffic::Flows | Traffic::Slow(_) => {}
                },
            }
        }
    }

    fn trick(&self, bytes: &[u8], is_of_store: bool) -> Option<Trick> {
        let mut state = self.state();
        if state.refused.as_ref().is_some_and(|test| test(bytes)) {
            return Some(Trick::LoseRequest);
        }
        let plays = |(test, trick): &(Test, Trick)| {
            (is_of_store || !matches!(trick, Trick::Repeat | Trick::RepeatLate)) && test(bytes)
        };
        if !state.look_out.as_ref().is_some_and(plays) {
            return None;
        }
        state.played += 1;
        state.look_out.take().map(|(_, trick)| trick)
    }
}

/// Passes the server's reply on to the client, or throws it away. Its end shows in the server's silence. Returns whether there
/// was one, and the connection is still good.
async fn pass_answer(from_server: &mut OwnedReadHalf, mut to_client: Option<&mut OwnedWriteHalf>) -> bool {
    let mut bytes = [0; 4096];
    let (mut quiet, mut answered) = (Duration::from_secs(5), false);
    loop {
        match timeout(quiet, from_server.read(&mut bytes)).await {
            Err(_) => return answered,
            Ok(Err(_) | Ok(0)) => return false,
            Ok(Ok(length)) => {
                if let Some(client) = &mut to_client
                    && client.write_all(&bytes[..length]).await.is_err()
                {
                    return false;
                }
            }
        }
        (quiet, answered) = (QUIET, true);
    }
}

/// Closes the connection with a reset instead of a farewell.
fn reset(client: &TcpStream) {
    let _ = client.set_zero_linger();
}
