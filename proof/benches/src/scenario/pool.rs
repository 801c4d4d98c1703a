//! Finds how large a library's pool is best, once for each number of tasks: the best size depends on the
//! machine, and no library is to be measured below its best.

use std::time::Duration;

use super::Context;
use crate::load::Load;
use crate::subject::{Kind, POOL, Use};

/// Each size is tried that often, in turns.
const TURNS: usize = 2;

pub(super) async fn best(context: &mut Context<'_>, kind: Kind, load: Load<'_>) -> anyhow::Result<usize> {
    if !kind.has_pool() || load.tasks == 1 {
        return Ok(POOL);
    }
    if let Some(size) = context.pools.get(&(kind, load.tasks)) {
        return Ok(*size);
    }
    let sizes: &[usize] = context.pace.pick(&[16, 32], &[8, 16, 32, 64]);
    let mut entries = vec![0; sizes.len()];
    let trial = Load {
        warm: Duration::from_millis(200),
        time: Duration::from_millis(300),
        ..load
    };
    for _ in 0..TURNS {
        for (size, entries) in sizes.iter().zip(&mut entries) {
            let plan = Use {
                pool: *size,
                ..Use::apart(load.tasks)
            };
            let subject = kind.open(context.servers, plan).await?;
            let seen = trial.run(&*subject).await;
            subject.close().await?;
            *entries += seen?.entries.iter().sum::<u64>();
        }
    }
    let best = sizes.iter().zip(entries).max_by_key(|(_, entries)| *entries);
    let size = best.map_or(POOL, |(size, _)| *size);
    context.pools.insert((kind, load.tasks), size);
    Ok(size)
}
