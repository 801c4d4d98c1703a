//! When a service is asked to end: by Ctrl-C on a terminal, or by SIGTERM, which systemd, Docker and
//! Kubernetes send.

use std::io;

/// Completes at the first Ctrl-C or SIGTERM.
///
/// # Errors
/// When the system does not let this process handle signals.
pub async fn signal() -> io::Result<()> {
    let interrupt = tokio::signal::ctrl_c();
    #[cfg(unix)]
    {
        use tokio::signal::unix::{SignalKind, signal};
        let mut terminate = signal(SignalKind::terminate())?;
        tokio::select! {
            stop = interrupt => stop,
            _ = terminate.recv() => Ok(()),
        }
    }
    #[cfg(not(unix))]
    interrupt.await
}
