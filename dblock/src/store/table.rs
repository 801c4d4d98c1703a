//! The name of the lock table. Only names that this file accepts reach SQL text.

/// The table name when the builder gives none.
pub(crate) const DEFAULT_TABLE: &str = "distributed_lock";

/// The suffix of the version table's name.
const VERSION_SUFFIX: &str = "_version";

/// The suffix of the name of the table of records. It is no longer than the other.
const RECORD_SUFFIX: &str = "_record";

/// PostgreSQL truncates longer names; MySQL allows one byte more.
const MAX_PART_BYTES: usize = 63;

/// A checked table name, with its schema (a database in MySQL) where one is given. Each part is a letter or
/// `_`, then letters, digits or `_`, all ASCII: no part can end a quoted identifier.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TableName {
    schema: Option<String>,
    name: String,
}

impl TableName {
    /// Reads `table` or `schema.table`. The error is for people.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let (schema, name) = match text.split_once('.') {
            Some((schema, name)) => (Some(schema), name),
            None => (None, text),
        };
        let fits = |part: &str, most: usize| {
            part.len() <= most
                && part.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
                && part.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
        };
        if !fits(name, MAX_PART_BYTES - VERSION_SUFFIX.len())
            || !schema.is_none_or(|s| fits(s, MAX_PART_BYTES))
        {
            return Err(format!(
                "the table name {text:?} is not allowed: write `table` or `schema.table` with ASCII letters, \
                 digits and `_`, at most 55 bytes for the table and 63 for the schema"
            ));
        }
        Ok(Self {
            schema: schema.map(Into::into),
            name: name.into(),
        })
    }

    pub(crate) fn schema(&self) -> Option<&str> {
        self.schema.as_deref()
    }

    /// The table's name without its schema.
    #[cfg(feature = "mysql")]
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// The lock table for SQL text, each part between `quote` characters.
    pub(crate) fn quoted(&self, quote: char) -> String {
        self.quoted_with(quote, "")
    }

    /// The version table for SQL text.
    pub(crate) fn quoted_version(&self, quote: char) -> String {
        self.quoted_with(quote, VERSION_SUFFIX)
    }

    /// The table of records for SQL text.
    pub(crate) fn quoted_record(&self, quote: char) -> String {
        self.quoted_with(quote, RECORD_SUFFIX)
    }

    /// The lock table, the version table and the table of records for SQL text.
    pub(crate) fn all_quoted(&self, quote: char) -> [String; 3] {
        [
            self.quoted(quote),
            self.quoted_version(quote),
            self.quoted_record(quote),
        ]
    }

    fn quoted_with(&self, quote: char, suffix: &str) -> String {
        let name = format!("{quote}{}{suffix}{quote}", self.name);
        match &self.schema {
            Some(schema) => format!("{quote}{schema}{quote}.{name}"),
            None => name,
        }
    }
}

impl std::fmt::Display for TableName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.schema {
            Some(schema) => write!(f, "{schema}.{}", self.name),
            None => f.write_str(&self.name),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_quoted_part_by_part() {
        let table = TableName::parse("ops.distributed_lock").unwrap();
        assert_eq!(table.quoted('"'), r#""ops"."distributed_lock""#);
        assert_eq!(table.quoted_version('`'), "`ops`.`distributed_lock_version`");
        assert_eq!(
            TableName::parse(DEFAULT_TABLE).unwrap().quoted('"'),
            r#""distributed_lock""#
        );
    }

    #[test]
    fn what_could_leave_the_quotes_is_refused() {
        for bad in [
            "",
            ".",
            "a.",
            ".a",
            "a.b.c",
            "1a",
            "a b",
            "a\"b",
            "a`b",
            "a;b",
            "å",
            "a-b",
            "a\0",
            &"a".repeat(56),
        ] {
            assert!(TableName::parse(bad).is_err(), "{bad:?}");
        }
    }
}
