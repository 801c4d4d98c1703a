//! Faults of the disk under a server or a file.

use std::time::Duration;

use dblock_servers::disk::Disk;
use sqlx::{Connection as _, PgConnection};
use tokio::time::{sleep, timeout};

use super::{Injector, millis};
use crate::fault::Fault;
use crate::target::StoreKind;

/// How long a full disk is looked for.
const TIMEOUT: Duration = Duration::from_secs(3);

impl Injector<'_> {
    pub(super) async fn on_disk(&self, fault: &Fault) -> anyhow::Result<bool> {
        if let Some(disk) = &self.target.disk {
            self.under_the_processes(&*disk.lock().await, fault).await?;
            return Ok(true);
        }
        let Some(server) = &self.target.server else {
            return Ok(false);
        };
        // They are rarer than others, and wait for them.
        let mut server = server.lock().await;
        if *fault == Fault::LosePower {
            server.kill();
        }
        let Some(disk) = server.disk() else {
            return Ok(false);
        };
        let fills = matches!(fault, Fault::FillDisk { .. });
        let needs_room = async {
            if fills && self.target.store == StoreKind::Postgres {
                let _ = timeout(TIMEOUT, use_up_log(self.target.url())).await;
            }
        };
        let (done, ()) = tokio::join!(carry_out(disk, fault), needs_room);
        done?;
        if fills {
            server.recover().await?;
        } else {
            server.restart_with_disk().await?;
        }
        Ok(true)
    }

    /// The processes have the file open, so they end before its disk is mounted again.
    async fn under_the_processes(&self, disk: &Disk, fault: &Fault) -> anyhow::Result<()> {
        if *fault == Fault::LosePower {
            let failure = async {
                disk.lose_power().await?;
                disk.mount_again().await
            };
            return self.processes.replace_all(failure).await;
        }
        carry_out(disk, fault).await?;
        match fault {
            Fault::FillDisk { .. } => Ok(()),
            _ => self.processes.replace_all(disk.mount_again()).await,
        }
    }
}

/// PostgreSQL keeps files for its log: without them it needs room soon.
async fn use_up_log(url: &str) -> sqlx::Result<()> {
    let mut admin = PgConnection::connect(url).await?;
    loop {
        sqlx::raw_sql("SELECT pg_logical_emit_message(true, '', ''), pg_switch_wal()")
            .execute(&mut admin)
            .await?;
    }
}

/// Returns when the disk is to be mounted again, or is no longer full.
async fn carry_out(disk: &Disk, fault: &Fault) -> anyhow::Result<()> {
    match *fault {
        Fault::LosePower => disk.lose_power().await?,
        Fault::FillDisk { ms } => {
            disk.fill().await;
            sleep(millis(ms)).await;
            disk.empty()?;
        }
        Fault::FailDisk { ms } => {
            disk.lose_power().await?;
            sleep(millis(ms)).await;
        }
        Fault::ReadOnlyDisk { ms } => {
            disk.become_read_only()?;
            sleep(millis(ms)).await;
        }
        _ => unreachable!("not a fault of the disk"),
    }
    Ok(())
}
