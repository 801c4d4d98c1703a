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
}

impl Tape {
    pub(crate) fn from_seed(seed: u64, record: bool) -> Self {
        Self {
            state: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x5bf0_3635,
            script: None,
            record: record.then(Vec::new),
        }
    }

    pub(crate) fn repeat(choices: Vec<u32>) -> Self {
        Self {
            script: Some(choices.into_iter()),
            ..Self::from_seed(0, true)
        }
    }

    pub(crate) fn into_record(self) -> Vec<u32> {
        self.record.unwrap_or_default()
    }

    /// From 0 up to, but not including, `count`.
    pub(crate) fn below(&mut self, count: u32) -> u32 {
        let choice = match &mut self.script {
            Some(script) => script.next().unwrap_or(0).min(count.saturating_sub(1)),
            None => self.random(count),
        };
        if let Some(record) = &mut self.record {
            record.push(choice);
        }
        choice
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
        permille > 0 && self.below(1000) >= 1000 - permille.min(1000)
    }

    /// One of them; the first is the simplest.
    pub(crate) fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(u32::try_from(from.len()).unwrap_or(u32::MAX)) as usize]
    }
}
