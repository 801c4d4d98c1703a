//! Which shard keeps a key: rendezvous hashing by name. Each shard has a weight for each key, and the
//! heaviest keeps it.

use std::sync::Arc;

use uuid::Uuid;

use dblock_core::Key;

/// The place of a key, by the numbers of shards.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Place {
    One(usize),
    /// Held on both while it moves.
    Moved {
        old: usize,
        new: usize,
    },
}

/// The names of all shards.
#[derive(Debug, Clone)]
pub(super) struct Places {
    names: Vec<Arc<str>>,
    /// How many parts each shard has.
    parts: Vec<usize>,
    /// The numbers of the shards that keys move to.
    new: Vec<usize>,
    /// The numbers of the shards that keys move from, if they move.
    old: Option<Vec<usize>>,
    /// The pairs of shards that keys move between.
    pairs: Vec<Place>,
}

impl Places {
    /// The shards, each with its name and the number of its parts.
    pub(super) fn new(shards: impl IntoIterator<Item = (Arc<str>, usize)>) -> Self {
        let (names, parts): (Vec<_>, Vec<_>) = shards.into_iter().unzip();
        Self {
            new: (0..names.len()).collect(),
            names,
            parts,
            old: None,
            pairs: Vec::new(),
        }
    }

    /// The shards of both places, numbered with the new ones first. `None` if one of them is moving already.
    pub(super) fn moving_to(&self, new: &Self) -> Option<Self> {
        if self.are_moving() || new.are_moving() {
            return None;
        }
        let (mut names, mut parts) = (new.names.clone(), new.parts.clone());
        for (name, of_it) in self.names.iter().zip(&self.parts) {
            if !new.names.contains(name) {
                names.push(Arc::clone(name));
                parts.push(*of_it);
            }
        }
        let is_old = |at: &usize| self.names.contains(&names[*at]);
        let old: Vec<usize> = (0..names.len()).filter(is_old).collect();
        // A key moves to a shard that is new, or away from one that is gone.
        let may_move = |&(from, to): &(usize, usize)| !old.contains(&to) || from >= new.names.len();
        let pairs = old
            .iter()
            .flat_map(|&from| new.new.iter().map(move |&to| (from, to)));
        let pairs = pairs
            .filter(may_move)
            .map(|(old, new)| Place::Moved { old, new })
            .collect();
        Some(Self {
            names,
            parts,
            new: new.new.clone(),
            old: Some(old),
            pairs,
        })
    }

    pub(super) fn are_moving(&self) -> bool {
        self.old.is_some()
    }

    pub(super) fn of(&self, key: &Key) -> Place {
        let new = self.heaviest(key, &self.new);
        match self.old.as_ref().map(|old| self.heaviest(key, old)) {
            Some(old) if old != new => Place::Moved { old, new },
            _ => Place::One(new),
        }
    }

    /// Those of all shards, and for each pair one for each two parts that keys can move between.
    pub(super) fn parts(&self) -> usize {
        self.all().map(|place| self.parts_of(place)).sum()
    }

    /// The part of a key that has this place, and the part `within` each shard that keeps it.
    pub(super) fn part(&self, place: Place, within: impl Fn(usize) -> usize) -> usize {
        let before = self.all().take_while(|other| *other != place);
        let before: usize = before.map(|place| self.parts_of(place)).sum();
        before
            + match place {
                Place::One(at) => within(at),
                Place::Moved { old, new } => within(old) * self.parts[new] + within(new),
            }
    }

    /// The shard of a part, and the part within it; `None` if it is for keys that move.
    pub(super) fn shard_of_part(&self, part: usize) -> Option<(usize, usize)> {
        let mut within = part;
        for (at, parts) in self.parts.iter().enumerate() {
            match within.checked_sub(*parts) {
                None => return Some((at, within)),
                Some(rest) => within = rest,
            }
        }
        None
    }

    fn all(&self) -> impl Iterator<Item = Place> {
        let shards = (0..self.names.len()).map(Place::One);
        shards.chain(self.pairs.iter().copied())
    }

    fn parts_of(&self, place: Place) -> usize {
        match place {
            Place::One(at) => self.parts[at],
            Place::Moved { old, new } => self.parts[old] * self.parts[new],
        }
    }

    fn heaviest(&self, key: &Key, among: &[usize]) -> usize {
        let weight = |at: &&usize| weight(&self.names[**at], key);
        among.iter().max_by_key(weight).copied().unwrap_or_default()
    }
}

/// The weight of a shard for a key: the SHA-1 of both, as the UUID of version 5 that RFC 9562 makes of it. It
/// must never change: another weight would move keys.
fn weight(name: &str, key: &Key) -> Uuid {
    let text = [name.as_bytes(), key.as_str().as_bytes()].join(&0);
    Uuid::new_v5(&Uuid::NAMESPACE_OID, &text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(text: &str) -> Key {
        Key::new(None, text).unwrap()
    }

    fn places(names: &[&str]) -> Places {
        Places::new(names.iter().map(|name| (Arc::from(*name), 1)))
    }

    /// The name of the shard that keeps a key.
    fn keeper(places: &Places, key: &Key) -> Arc<str> {
        match places.of(key) {
            Place::One(at) => Arc::clone(&places.names[at]),
            moved @ Place::Moved { .. } => panic!("{moved:?}"),
        }
    }

    fn keys() -> impl Iterator<Item = Key> {
        (0..3_000).map(|n| key(&format!("order:{n}")))
    }

    /// Computed by Python: `uuid.uuid5(uuid.NAMESPACE_OID, "a\0order:42")`.
    #[test]
    fn weights_stay_what_they_are() {
        for (name, text, known) in [
            ("a", "order:42", "1a1dbdb3-ac00-57f5-9fd1-e93d2cd9cd23"),
            ("b", "order:42", "f3716e7b-673d-5e85-9618-9f2e00427853"),
            (
                "eu-1",
                "billing:\u{1f512}",
                "51fd1428-db9b-5560-a62c-b54e1481fc3b",
            ),
        ] {
            assert_eq!(weight(name, &key(text)).to_string(), known, "{name} {text}");
        }
    }

    #[test]
    fn each_shard_has_its_share_whatever_the_order() {
        let (some, turned) = (places(&["a", "b", "c"]), places(&["c", "a", "b"]));
        let mut shares = [0; 3];
        for key in keys() {
            let name = keeper(&some, &key);
            assert_eq!(name, keeper(&turned, &key));
            shares[usize::from(name.as_bytes()[0] - b'a')] += 1;
        }
        assert!(
            shares.iter().all(|share| (900..1_100).contains(share)),
            "{shares:?}"
        );
    }

    #[test]
    fn a_new_shard_moves_only_its_own_share() {
        let (old, new) = (places(&["a", "b"]), places(&["b", "c", "a"]));
        let moving = old.moving_to(&new).unwrap();
        let mut moved = 0;
        for key in keys() {
            let (from, to) = (keeper(&old, &key), keeper(&new, &key));
            match moving.of(&key) {
                Place::One(at) => assert_eq!([&from, &to], [&moving.names[at]; 2]),
                place @ Place::Moved { old, new } => {
                    assert_eq!([&from, &to], [&moving.names[old], &moving.names[new]]);
                    assert_eq!(&*to, "c");
                    assert!(moving.pairs.contains(&place) && moving.part(place, |_| 0) >= 3);
                    moved += 1;
                }
            }
        }
        assert!((900..1_100).contains(&moved), "{moved}");
        assert_eq!(moving.pairs.len(), 2);
    }

    #[test]
    fn the_keys_of_a_removed_shard_move_to_the_others() {
        let (old, new) = (places(&["a", "b", "c"]), places(&["a", "c"]));
        let moving = old.moving_to(&new).unwrap();
        for key in keys() {
            let stays = &*keeper(&old, &key) != "b";
            assert_eq!(stays, matches!(moving.of(&key), Place::One(_)), "{key:?}");
            assert!(moving.part(moving.of(&key), |_| 0) < moving.parts());
        }
        assert!(moving.moving_to(&new).is_none() && new.moving_to(&moving).is_none());
    }

    #[test]
    fn each_part_of_a_shard_and_each_two_that_keys_move_between_are_a_part() {
        let places = |shards: &[(&str, usize)]| {
            Places::new(shards.iter().map(|(name, parts)| (Arc::from(*name), *parts)))
        };
        let (old, new) = (
            places(&[("a", 2), ("b", 1)]),
            places(&[("a", 2), ("b", 1), ("c", 3)]),
        );
        let moving = old.moving_to(&new).unwrap();
        let mut parts = Vec::new();
        for place in moving.all() {
            for (one, other) in (0..3).flat_map(|one| (0..3).map(move |other| (one, other))) {
                let within = |at| {
                    if matches!(place, Place::Moved { new, .. } if new == at) {
                        other
                    } else {
                        one
                    }
                };
                let fits = match place {
                    Place::One(at) => one < moving.parts[at] && other == 0,
                    Place::Moved { old, new } => one < moving.parts[old] && other < moving.parts[new],
                };
                if fits {
                    let part = moving.part(place, within);
                    let shard = matches!(place, Place::One(_)).then_some((place, one));
                    assert_eq!(
                        moving
                            .shard_of_part(part)
                            .map(|(at, within)| (Place::One(at), within)),
                        shard
                    );
                    parts.push(part);
                }
            }
        }
        assert_eq!(parts, (0..moving.parts()).collect::<Vec<_>>());
        assert_eq!(moving.parts(), (2 + 1 + 3) + (2 * 3 + 3));
    }
}
