//! The source of every choice of a schedule: a seed, or the choices of an earlier run. 0 is always the choice
//! that is simplest to read, so that a tape shrinks by getting shorter and by getting nearer to 0.

/// A source of choices.
#[derive(Debug)]
pub(crate) struct Tape {
    state: u64,
    /// Choices to repeat; 0 after their end.
    script: Option<std::vec::IntoIter<u32>>,
    /// The choices so far, if they are recorded.
    record: Option<Vec<u32>>,
    /// The choices so far, if each is one of a few.
    few: Option<Vec<Choice>>,
    /// The next choice is a part of the last one.
    goes_on: bool,
}

/// A choice in a small world.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Choice {
    pub(crate) chosen: u32,
    /// How many there were.
    pub(crate) of: u32,
    /// It says how, or when, what was chosen before happens.
    pub(crate) goes_on: bool,
}

impl Tape {
    pub(crate) fn from_seed(seed: u64, record: bool) -> Self {
        Self {
            state: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x5bf0_3635,
            script: None,
            record: record.then(Vec::new),
            few: None,
            goes_on: false,
        }
    }

    pub(crate) fn repeat(choices: Vec<u32>) -> Self {
        Self {
            script: Some(choices.into_iter()),
            ..Self::from_seed(0, true)
        }
    }

    /// As [`repeat`](Self::repeat), in a small world: each choice is one of a few, of which the first is the
    /// simplest too.
    pub(crate) fn few(choices: Vec<u32>) -> Self {
        Self {
            script: Some(choices.into_iter()),
            few: Some(Vec::with_capacity(128)),
            ..Self::from_seed(0, false)
        }
    }

    /// The choices in a small world.
    pub(crate) fn into_few(self) -> Vec<Choice> {
        self.few.unwrap_or_default()
    }

    pub(crate) fn into_record(self) -> Vec<u32> {
        self.record.unwrap_or_default()
    }

    /// From 0 up to, but not including, `count`.
    pub(crate) fn below(&mut self, count: u32) -> u32 {
        if self.few.is_some() {
            return match count {
                0..=4 => self.one_of_few(count),
                _ => [0, count / 2, count - 1][self.one_of_few(3) as usize],
            };
        }
        let choice = match &mut self.script {
            Some(script) => script.next().unwrap_or(0).min(count.saturating_sub(1)),
            None => self.random(count),
        };
        if let Some(record) = &mut self.record {
            record.push(choice);
        }
        choice
    }

    fn one_of_few(&mut self, count: u32) -> u32 {
        if count < 2 {
            return 0;
        }
        let next = self.script.as_mut().and_then(Iterator::next);
        let chosen = next.unwrap_or(0).min(count - 1);
        let goes_on = std::mem::take(&mut self.goes_on);
        if let Some(few) = &mut self.few {
            few.push(Choice {
                chosen,
                of: count,
                goes_on,
            });
        }
        chosen
    }

    /// The generator `SplitMix64`.
    fn random(&mut self, count: u32) -> u32 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^= z >> 31;
        u32::try_from(((z >> 32) * u64::from(count)) >> 32).unwrap_or(0)
    }

    /// True this many times in a thousand.
    pub(crate) fn chance(&mut self, permille: u32) -> bool {
        if self.few.is_some() {
            self.goes_on = permille > 0 && self.one_of_few(2) == 1;
            return self.goes_on;
        }
        permille > 0 && self.below(1000) >= 1000 - permille.min(1000)
    }

    /// Whether it is the last of so many.
    pub(crate) fn last_of(&mut self, count: u32) -> bool {
        let count = if self.few.is_some() { 2 } else { count };
        self.below(count) == count - 1
    }

    /// As [`below`](Self::below); in a small world one of these.
    pub(crate) fn below_or_few(&mut self, count: u32, few: &[u32]) -> u32 {
        if self.few.is_some() {
            self.pick(few)
        } else {
            self.below(count)
        }
    }

    /// As [`pick`](Self::pick), for what matters only if `needed`: no choice in a small world otherwise.
    pub(crate) fn pick_if<T: Copy>(&mut self, needed: bool, from: &[T]) -> T {
        if self.few.is_some() && !needed {
            from[0]
        } else {
            self.pick(from)
        }
    }

    /// One of them; the first is the simplest.
    pub(crate) fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(u32::try_from(from.len()).unwrap_or(u32::MAX)) as usize]
    }
}
