//! A network between a subject and its server, which makes every round trip a millisecond longer.
//!
//! It runs on threads of its own: tokio's timers count whole milliseconds.

use std::io::{self, Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

/// How much later each direction is.
const ONE_WAY: Duration = Duration::from_micros(500);

/// Passes connections on to a server. It takes no more when it is dropped.
#[derive(Debug)]
pub(crate) struct Delay {
    address: SocketAddr,
    ends: Arc<AtomicBool>,
}

impl Delay {
    pub(crate) fn start(server: (String, u16)) -> io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let address = listener.local_addr()?;
        let ends = Arc::new(AtomicBool::new(false));
        let ended = Arc::clone(&ends);
        thread::spawn(move || {
            for client in listener.incoming() {
                if ended.load(Ordering::SeqCst) {
                    return;
                }
                // The subject sees a connection that fails here as closed.
                let _ = client.and_then(|client| join(client, TcpStream::connect(&server)?));
            }
        });
        Ok(Self { address, ends })
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Delay {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::SeqCst);
        // Wakes the thread that accepts.
        let _ = TcpStream::connect(self.address);
    }
}

fn join(client: TcpStream, server: TcpStream) -> io::Result<()> {
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    pass_on(client.try_clone()?, server.try_clone()?);
    pass_on(server, client);
    Ok(())
}

/// Passes one direction on. It reads and writes on two threads, so that a piece does not wait for the delay of
/// the one before.
fn pass_on(mut from: TcpStream, mut to: TcpStream) {
    let (send, pieces) = mpsc::channel();
    thread::spawn(move || {
        let mut bytes = vec![0; 64 * 1024];
        while let Ok(length @ 1..) = from.read(&mut bytes) {
            if send
                .send((Instant::now() + ONE_WAY, bytes[..length].to_vec()))
                .is_err()
            {
                return;
            }
        }
    });
    thread::spawn(move || {
        for (due, piece) in pieces {
            thread::sleep(due.saturating_duration_since(Instant::now()));
            if to.write_all(&piece).is_err() {
                break;
            }
        }
        let _ = to.shutdown(Shutdown::Write);
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_round_trip_takes_a_millisecond_longer() {
        let server = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let port = server.local_addr().expect("it is bound").port();
        thread::spawn(move || {
            let (mut client, _) = server.accept().expect("the delay connects");
            let mut byte = [0];
            while let Ok(1) = client.read(&mut byte) {
                client.write_all(&byte).expect("it reads");
            }
        });
        let delay = Delay::start(("127.0.0.1".to_owned(), port)).expect("it starts");
        let mut client = TcpStream::connect(delay.address()).expect("it listens");
        for byte in 0..3 {
            let asked = Instant::now();
            client.write_all(&[byte]).expect("it reads");
            let mut answer = [0];
            client.read_exact(&mut answer).expect("it answers");
            assert_eq!(answer, [byte]);
            assert!(asked.elapsed() >= 2 * ONE_WAY);
        }
    }
}
