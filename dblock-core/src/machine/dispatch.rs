//! The choice of the requests that go together in a batch, and of the time when it is sent.
//!
//! Group commit: while a batch is on its way, the next one collects. A store that takes three calls at once
//! gets a lane for each kind of request, so that a renewal never waits behind acquires. A store that takes
//! fewer gets mixed batches on one lane. A store of several parts has these lanes for each part, so that a
//! part that hangs delays no other.
//!
//! Batches are coalesced: a batch costs one commit, however few requests are in it, and callers that were
//! answered together tend to ask again together. So a batch of acquires waits a moment for a batch of
//! releases that is on its way. The callers of that one are about to acquire. It must not be the smaller one.
//! The same holds the other way round. A batch also waits for callers that the last batch has answered and
//! that do not run yet. Each batch waits only once.

use std::collections::VecDeque;
use std::time::Duration;

use super::env::Time;
use crate::store::Kind;

/// The most requests in a batch.
pub const MAX_BATCH: usize = 1024;

/// Time limit of a batch, connecting included. After it the connection is given up and the outcome is
/// unknown. Commits of two seconds must succeed, and a renewal that hangs must leave time to be sent again
/// before its lease ends.
const TIMEOUT: Duration = Duration::from_millis(2500);
const SHORTEST_TIMEOUT: Duration = Duration::from_millis(100);

/// The time limit of a batch that has a request with this limit; `None`: the usual one.
pub fn time_limit(limit: Option<Duration>) -> Duration {
    limit.unwrap_or(TIMEOUT).max(SHORTEST_TIMEOUT)
}

/// The longest time that a batch waits for another batch or for callers. A commit takes less, unless
/// something is wrong.
const COALESCE: Duration = Duration::from_millis(2);

/// A batch with fewer requests is not waited for.
const SMALLEST_TO_WAIT_FOR: usize = 3;

/// A batch of so many does not wait: one more would hardly be cheaper, and meanwhile the store could work.
const LARGE: usize = 64;

/// One lane for everything, or one for each kind of request.
const MIXED: [&[Kind]; 1] = [&[Kind::Extend, Kind::Release, Kind::Acquire]];
const APART: [&[Kind]; 3] = [&[Kind::Extend], &[Kind::Release], &[Kind::Acquire]];

/// `K` is the type of a key.
#[derive(Debug)]
pub struct Dispatch<K> {
    lanes: Vec<Lane<K>>,
    /// A batch coalesces until then.
    coalesces_until: Option<Time>,
}

#[derive(Debug)]
struct Lane<K> {
    /// The part of the store that the keys are in.
    part: usize,
    kinds: &'static [Kind],
    /// Keys with something to send, each with the largest batch that it may be part of.
    ready: VecDeque<(K, usize)>,
    /// How many requests are on their way, and since when.
    on_its_way: Option<(usize, Time)>,
    /// Since when the next batch coalesces. Each batch does so only once.
    coalesces_since: Option<Time>,
}

impl<K> Dispatch<K> {
    /// `concurrency`: how many calls each of the `parts` of the store takes at once.
    pub fn new(parts: usize, concurrency: usize) -> Self {
        let kinds: &[&[Kind]] = if concurrency >= APART.len() {
            &APART
        } else {
            &MIXED
        };
        let lane = |part, kinds| Lane {
            part,
            kinds,
            ready: VecDeque::new(),
            on_its_way: None,
            coalesces_since: None,
        };
        let lanes_of = |part| kinds.iter().map(move |kinds| lane(part, *kinds));
        Self {
            lanes: (0..parts.max(1)).flat_map(lanes_of).collect(),
            coalesces_until: None,
        }
    }

    /// Lists a key of a part with a request of this kind. Its batch may have at most `most_together`
    /// requests.
    pub fn ready(&mut self, key: K, part: usize, kind: Kind, most_together: usize) {
        let is_its = |lane: &&mut Lane<K>| lane.part == part && lane.kinds.contains(&kind);
        if let Some(lane) = self.lanes.iter_mut().find(is_its) {
            lane.ready.push_back((key, most_together));
        }
    }

    /// A lane whose next batch can be sent now. `resuming`: some answered callers do not run yet.
    pub fn next_lane(&mut self, now: Time, resuming: bool) -> Option<usize> {
        self.coalesces_until = None;
        (0..self.lanes.len()).find(|lane| self.may_send(*lane, now, resuming))
    }

    fn may_send(&mut self, at: usize, now: Time, resuming: bool) -> bool {
        if self.lanes[at].on_its_way.is_some() || self.lanes[at].ready.is_empty() {
            return false;
        }
        match self.waits_until(at, now, resuming) {
            Some(until) if until > now => {
                self.coalesces_until = self.coalesces_until.into_iter().chain([until]).min();
                false
            }
            _ => true,
        }
    }

    /// The time until which a lane waits for the batch of its counterpart, or for callers that were just
    /// answered.
    fn waits_until(&mut self, at: usize, now: Time, resuming: bool) -> Option<Time> {
        let counterpart = match self.lanes[at].kinds {
            [Kind::Release] => Kind::Acquire,
            [Kind::Acquire] => Kind::Release,
            _ => return None,
        };
        if self.lanes[at].ready.len() >= LARGE {
            return None;
        }
        if resuming {
            let since = *self.lanes[at].coalesces_since.get_or_insert(now);
            return Some(since + COALESCE);
        }
        let part = self.lanes[at].part;
        let is_other = |lane: &&Lane<K>| lane.part == part && lane.kinds == [counterpart];
        let other = self.lanes.iter().find(is_other)?;
        let (count, sent_at) = other.on_its_way?;
        let lane = &mut self.lanes[at];
        let since = *lane.coalesces_since.get_or_insert(sent_at);
        (count >= SMALLEST_TO_WAIT_FOR && lane.ready.len() <= count).then(|| since + COALESCE)
    }

    /// When a batch that coalesces may be sent.
    pub fn coalesces_until(&self) -> Option<Time> {
        self.coalesces_until
    }

    /// Takes the keys of a lane's next batch. The batch is on its way until [`answered`](Self::answered).
    pub fn take(&mut self, lane: usize, now: Time) -> (Vec<K>, &'static [Kind]) {
        let lane = &mut self.lanes[lane];
        let mut keys = Vec::new();
        let mut most = MAX_BATCH;
        while let Some((_, most_together)) = lane.ready.front() {
            most = most.min(*most_together);
            if keys.len() >= most {
                break;
            }
            keys.extend(lane.ready.pop_front().map(|(key, _)| key));
        }
        lane.on_its_way = Some((keys.len(), now));
        lane.coalesces_since = None;
        (keys, lane.kinds)
    }

    /// The batch of a lane was answered.
    pub fn answered(&mut self, lane: usize) {
        self.lanes[lane].on_its_way = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Time = Time::MAX;

    fn ready(dispatch: &mut Dispatch<u32>, kind: Kind, count: u32) {
        (0..count).for_each(|key| dispatch.ready(key, 0, kind, MAX_BATCH));
    }

    #[test]
    fn each_kind_has_a_lane_where_the_store_takes_three_calls() {
        let mut apart = Dispatch::new(1, 3);
        ready(&mut apart, Kind::Acquire, 2);
        ready(&mut apart, Kind::Extend, 1);
        let lane = apart.next_lane(NOW, false).unwrap();
        assert_eq!(apart.take(lane, NOW), (vec![0], &[Kind::Extend][..]));
        let lane = apart.next_lane(NOW, false).unwrap();
        assert_eq!(apart.take(lane, NOW), (vec![0, 1], &[Kind::Acquire][..]));
        assert_eq!(apart.next_lane(NOW, false), None);

        let mut mixed = Dispatch::new(1, 1);
        ready(&mut mixed, Kind::Acquire, 1);
        ready(&mut mixed, Kind::Release, 1);
        let lane = mixed.next_lane(NOW, false).unwrap();
        assert_eq!(mixed.take(lane, NOW).0, [0, 0]);
    }

    #[test]
    fn a_batch_waits_for_a_larger_one_but_not_for_long() {
        let now = Time::from_nanos(1);
        let mut dispatch = Dispatch::new(1, 3);
        ready(&mut dispatch, Kind::Release, 4);
        let releases = dispatch.next_lane(now, false).unwrap();
        dispatch.take(releases, now);
        ready(&mut dispatch, Kind::Acquire, 2);
        assert_eq!(dispatch.next_lane(now, false), None);
        assert_eq!(dispatch.coalesces_until(), Some(now + COALESCE));
        assert!(dispatch.next_lane(now + COALESCE, false).is_some());
        ready(&mut dispatch, Kind::Acquire, 3);
        assert!(dispatch.next_lane(now, false).is_some(), "it is larger now");
    }

    #[test]
    fn a_batch_waits_for_callers_that_do_not_run_yet_but_a_renewal_does_not() {
        let now = Time::from_nanos(1);
        let mut dispatch = Dispatch::new(1, 3);
        ready(&mut dispatch, Kind::Release, 1);
        assert_eq!(dispatch.next_lane(now, true), None);
        assert_eq!(dispatch.coalesces_until(), Some(now + COALESCE));
        ready(&mut dispatch, Kind::Extend, 1);
        let renewals = dispatch.next_lane(now, true).unwrap();
        assert_eq!(dispatch.take(renewals, now).1, [Kind::Extend]);
        assert!(dispatch.next_lane(now, false).is_some(), "they all run");
        assert!(
            dispatch.next_lane(now + COALESCE, true).is_some(),
            "for a moment only"
        );
    }

    #[test]
    fn a_large_batch_does_not_wait() {
        let now = Time::from_nanos(1);
        let mut dispatch = Dispatch::new(1, 3);
        ready(&mut dispatch, Kind::Acquire, 63);
        assert_eq!(dispatch.next_lane(now, true), None);
        ready(&mut dispatch, Kind::Acquire, 1);
        assert!(dispatch.next_lane(now, true).is_some());
    }

    #[test]
    fn a_key_goes_in_a_batch_as_small_as_it_must() {
        let mut dispatch = Dispatch::new(1, 1);
        ready(&mut dispatch, Kind::Acquire, 3);
        dispatch.ready(9, 0, Kind::Acquire, 1);
        assert_eq!(dispatch.take(0, NOW).0, [0, 1, 2]);
        assert_eq!(dispatch.take(0, NOW).0, [9]);
    }

    #[test]
    fn a_part_that_hangs_delays_no_other() {
        let mut dispatch = Dispatch::new(2, 1);
        dispatch.ready(1, 0, Kind::Acquire, MAX_BATCH);
        let hangs = dispatch.next_lane(NOW, false).unwrap();
        assert_eq!(dispatch.take(hangs, NOW).0, [1]);
        dispatch.ready(2, 0, Kind::Acquire, MAX_BATCH);
        dispatch.ready(3, 1, Kind::Acquire, MAX_BATCH);
        let other = dispatch.next_lane(NOW, false).unwrap();
        assert_eq!(dispatch.take(other, NOW).0, [3]);
        assert_eq!(dispatch.next_lane(NOW, false), None);
        dispatch.answered(hangs);
        assert_eq!(dispatch.next_lane(NOW, false), Some(hangs));
    }
}
