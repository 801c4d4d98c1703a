//! Keys and holders are stored unchanged: nothing in them is folded, cut, padded or read as SQL.

use dblock_core::store::Outcome;

use super::AnyFixture;
use super::context::{Asker, Grant, LONG, batch, existing, one, row};

/// Keys that some database, collation or driver takes for each other.
#[doc(hidden)]
pub fn look_alikes() -> Vec<String> {
    let mut keys: Vec<String> = [
        "a",
        "A",
        "a ",
        " a",
        "a  ",
        "a\t",
        "a\n",
        "ä",
        "Ä",
        "a\u{308}",
        "ae",
        "ß",
        "ss",
        "SS",
        "ſ",
        "i",
        "I",
        "ı",
        "İ",
        "é",
        "e\u{301}",
        "ﬁ",
        "fi",
        "①",
        "1",
        "01",
        "1.0",
        "１",
        "\u{200b}a",
        "a\u{200b}",
        "\u{feff}a",
        "\u{1f512}",
        "\u{1f513}",
        "\u{10ffff}",
        "\u{1}",
        "\u{7f}",
        "日本",
        "日本 ",
        "'",
        "''",
        "\"",
        "\"\"",
        "`",
        ";",
        "--",
        "/*",
        "%",
        "_",
        "__",
        "\\",
        "\\\\",
        "\\'",
        "\\0",
        "\\n",
        "$1",
        "?",
        "?1",
        ":a",
        "@a",
        "{}",
        "[a]",
        "(a,b)",
        ",",
        "NULL",
        "null",
        "true",
        "0x61",
        "a:b",
        "a::b",
        "a/b",
        "a|b",
        "a.b",
        "*",
        "[a-z]",
        "'; DROP TABLE distributed_lock; --",
        "' OR '1'='1",
        "\r\n",
        "E'a'",
        "a'b",
        "a\"b",
        "a`b",
    ]
    .map(String::from)
    .into();
    keys.push("k".repeat(255));
    keys.push("k".repeat(254));
    keys.push(format!("{} ", "k".repeat(254)));
    keys.push("é".repeat(127));
    keys.push("\u{1f512}".repeat(63));
    keys.sort();
    keys.dedup();
    keys
}

/// Each of these keys has a row of its own, alone and in a batch.
pub async fn keys_are_compared_byte_by_byte(fixture: &dyn AnyFixture) {
    let store = fixture.store().await;
    let askers: Vec<Asker> = look_alikes().iter().map(|key| Asker::new(key)).collect();
    let acquires: Vec<_> = askers.iter().map(|asker| asker.acquire(LONG)).collect();
    for (request, outcome) in acquires.iter().zip(batch(&*store, &acquires).await) {
        assert_eq!(Grant::of(request, outcome).taken_over, None);
    }
    for asker in &askers {
        let row = existing(&*store, &asker.key).await;
        assert_eq!(
            (row.owner, row.lease_id),
            (asker.owner, asker.lease_id),
            "{:?} shares a row",
            asker.key
        );
        let outcome = one(&*store, Asker::new(asker.key.as_str()).acquire(LONG)).await;
        assert!(
            matches!(&outcome, Outcome::Busy(holder) if asker.is(holder)),
            "{outcome:?} for {asker:?}"
        );
    }
    for asker in askers.iter().step_by(2) {
        one(&*store, asker.release()).await;
    }
    for (n, asker) in askers.iter().enumerate() {
        let held = existing(&*store, &asker.key).await.is_held();
        assert_eq!(
            held,
            n % 2 == 1,
            "{:?} was released as another key, or not at all",
            asker.key
        );
    }
    assert_eq!(row(&*store, &Asker::new("never there").key).await, None);
}

/// The `holder` column returns each text unchanged.
pub async fn holders_are_kept_as_they_are(fixture: &dyn AnyFixture) {
    let store = fixture.store().await;
    let longest = "h".repeat(255);
    let holders = [
        "",
        " ",
        "host/1 a::b",
        "o'brien",
        "\"",
        "\\",
        "`",
        "%s",
        "$1",
        "\u{1f512} 日本",
        "a\nb",
        " a ",
        &longest,
    ];
    for (n, name) in holders.into_iter().enumerate() {
        let asker = Asker::with_holder(&format!("holder {n}"), name);
        one(&*store, asker.acquire(LONG)).await;
        assert_eq!(existing(&*store, &asker.key).await.holder, name);
        let outcome = one(&*store, Asker::new(asker.key.as_str()).acquire(LONG)).await;
        assert!(
            matches!(&outcome, Outcome::Busy(holder) if holder.name == name),
            "{outcome:?}"
        );
    }
}
