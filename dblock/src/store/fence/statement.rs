//! A statement for any driver.

use std::fmt::Write as _;

use super::Database;

/// One SQL statement, with text parameters.
///
/// A driver binds [`parameters`](Self::parameters) to the placeholders of [`sql`](Self::sql), which is the
/// same text each time. If binding costs the driver a round trip of its own, the driver sends
/// [`text`](Self::text) instead.
#[derive(Debug, Clone)]
pub struct FenceStatement {
    database: Database,
    /// With `$N` for the N-th value, and no other `$`.
    template: String,
    values: Vec<String>,
    prepared: bool,
}

impl FenceStatement {
    /// A statement of your own, to test an implementation of [`FenceConnection`](super::FenceConnection).
    /// `template` has `$1` in the place of the first value, and so on, on every database, and no other `$`.
    ///
    /// # Panics
    /// [`sql`](Self::sql), [`parameters`](Self::parameters) and [`text`](Self::text) panic later if a `$` of
    /// `template` is not followed by the number of one of the `values`.
    pub fn new(database: Database, template: &str, values: impl Into<Vec<String>>) -> Self {
        Self {
            database,
            template: template.to_owned(),
            values: values.into(),
            // MySQL parses a text faster than it looks up a prepared statement over two messages. Elsewhere
            // planning costs more than anything else that the statement does.
            prepared: database != Database::MySql,
        }
    }

    /// The statement for a database behind a pooler, where a prepared one may be gone, or be another
    /// client's.
    pub(crate) fn behind_a_pooler(mut self, pooled: bool) -> Self {
        self.prepared &= !pooled;
        self
    }

    /// The statement in one message with another one before it.
    pub(super) fn after(&self, first: &str) -> Self {
        Self {
            template: format!("{first}; {}", self.template),
            values: self.values.clone(),
            prepared: false,
            ..*self
        }
    }

    /// Whether the statement may be prepared and kept in the session. Otherwise send [`text`](Self::text), or
    /// prepare it without a name.
    pub fn is_prepared(&self) -> bool {
        self.prepared
    }

    /// The SQL. Its placeholders are `$1`, `$2`, … on PostgreSQL, and `?` in the order of the parameters
    /// elsewhere.
    pub fn sql(&self) -> String {
        match self.database {
            Database::Postgres => self.template.clone(),
            Database::MySql | Database::Sqlite => self.fill(|_| "?".to_owned()),
        }
    }

    /// The parameters, in the order of their placeholders. All of them are text; the SQL casts them. Bind
    /// them as text (on PostgreSQL as its type `text`).
    pub fn parameters(&self) -> Vec<&str> {
        if self.database == Database::Postgres {
            return self.values.iter().map(String::as_str).collect();
        }
        let mut parameters = Vec::new();
        self.fill(|value| {
            parameters.push(value);
            String::new()
        });
        parameters
    }

    /// The SQL with the parameters written into it as literals, which are safe in any session. It differs
    /// each time, so nothing is gained from preparing it.
    pub fn text(&self) -> String {
        self.fill(|value| literal(self.database, value))
    }

    /// The template with something in the place of each value.
    fn fill<'a>(&'a self, mut place: impl FnMut(&'a str) -> String) -> String {
        filled(&self.template, |index, text| {
            text.push_str(&place(&self.values[index]));
        })
    }
}

/// A template of ours with something in the place of `$1`, `$2` …: `place` writes it, by its index from 0 on.
pub(crate) fn filled(template: &str, mut place: impl FnMut(usize, &mut String)) -> String {
    let mut parts = template.split('$');
    let mut text = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let end = part.find(|c: char| !c.is_ascii_digit()).unwrap_or(part.len());
        let (number, rest) = part.split_at(end);
        let number: usize = number.parse().expect("our SQL has $ only before a number");
        place(number - 1, &mut text);
        text.push_str(rest);
    }
    text
}

/// Text as hexadecimal digits, in which no character has a special meaning, whatever the session's settings
/// are.
pub(crate) fn literal(database: Database, value: &str) -> String {
    let (before, after) = match database {
        Database::Postgres => (
            "pg_catalog.convert_from(pg_catalog.decode('",
            "', 'hex'), 'UTF8')",
        ),
        Database::MySql => ("_utf8mb4 X'", "'"),
        Database::Sqlite => ("CAST(X'", "' AS TEXT)"),
    };
    let mut text = before.to_owned();
    for byte in value.bytes() {
        let _ = write!(text, "{byte:02x}");
    }
    text + after
}

#[cfg(test)]
mod tests {
    use super::*;

    fn statement(database: Database) -> FenceStatement {
        let values: Vec<_> = (1..=10).map(|n| format!("'{n}")).collect();
        FenceStatement::new(database, "f($2, $10) = $2::text", values)
    }

    #[test]
    fn parameters_are_in_the_order_of_their_placeholders() {
        let numbered = statement(Database::Postgres);
        assert_eq!(numbered.sql(), "f($2, $10) = $2::text");
        assert_eq!(numbered.parameters()[1..3], ["'2", "'3"]);
        for database in [Database::MySql, Database::Sqlite] {
            let statement = statement(database);
            assert_eq!(statement.sql(), "f(?, ?) = ?::text");
            assert_eq!(statement.parameters(), ["'2", "'10", "'2"]);
        }
    }

    #[test]
    fn text_has_every_value_as_digits() {
        assert_eq!(
            statement(Database::MySql).text(),
            "f(_utf8mb4 X'2732', _utf8mb4 X'273130') = _utf8mb4 X'2732'::text"
        );
        for database in [Database::Postgres, Database::MySql, Database::Sqlite] {
            let hostile = FenceStatement::new(database, "$1", ["'; DROP TABLE x; -- $1 ? \\".to_owned()]);
            let text = hostile.text();
            assert!(
                text.contains("'273b2044524f50205441424c4520783b202d2d202431203f205c'"),
                "{text}"
            );
        }
    }
}
