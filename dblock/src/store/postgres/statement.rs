//! A statement with its parameters, and the two ways to send it.
//!
//! In a session of ours it is prepared once and then takes one round trip. Through a pooler, and in a
//! transaction of the user's, it goes as text in a single message, because what was prepared may be gone,
//! or another client's, when it is executed. Every value then is written as digits, so that none can be
//! taken for SQL.

use std::fmt::Write as _;
use std::sync::Arc;

use sqlx::postgres::PgRow;
use sqlx::{AssertSqlSafe, PgConnection};
use uuid::Uuid;

use super::session::{self, Session};

/// A statement that is being given its parameters.
pub(super) struct Statement<'q> {
    sql: Arc<str>,
    parameters: Vec<Parameter<'q>>,
}

/// One value, or an array of them.
pub(super) enum Parameter<'q> {
    Text(&'q str),
    Uuid(Uuid),
    Integer(i32),
    BigInt(i64),
    Boolean(bool),
    Texts(Vec<&'q str>),
    Uuids(Vec<Uuid>),
    Integers(Vec<i32>),
    BigInts(Vec<i64>),
    OptionalBigInts(Vec<Option<i64>>),
}

macro_rules! from {
    ($($kind:ty => $variant:ident),+ $(,)?) => {
        $(
            impl<'q> From<$kind> for Parameter<'q> {
                fn from(value: $kind) -> Self {
                    Self::$variant(value)
                }
            }
        )+
    };
}

from!(
    &'q str => Text,
    Uuid => Uuid,
    i32 => Integer,
    i64 => BigInt,
    bool => Boolean,
    Vec<&'q str> => Texts,
    Vec<Uuid> => Uuids,
    Vec<i32> => Integers,
    Vec<i64> => BigInts,
    Vec<Option<i64>> => OptionalBigInts,
);

impl<'q> Statement<'q> {
    /// Parameters stand in `sql` as `$1` to `$9`.
    pub(super) fn new(sql: &Arc<str>) -> Self {
        Self {
            sql: Arc::clone(sql),
            parameters: Vec::new(),
        }
    }

    /// Gives the next parameter.
    pub(super) fn bind(mut self, value: impl Into<Parameter<'q>>) -> Self {
        self.parameters.push(value.into());
        self
    }

    /// Executes it in a session of the store's.
    pub(super) async fn fetch_all(self, session: &mut Session) -> Result<Vec<PgRow>, sqlx::Error> {
        if !session.is_ours() {
            let text = session::for_one_transaction() + &self.text();
            return sqlx::raw_sql(AssertSqlSafe(text)).fetch_all(&mut **session).await;
        }
        let mut query = sqlx::query(AssertSqlSafe(self.sql));
        for parameter in self.parameters {
            query = match parameter {
                Parameter::Text(value) => query.bind(value),
                Parameter::Uuid(value) => query.bind(value),
                Parameter::Integer(value) => query.bind(value),
                Parameter::BigInt(value) => query.bind(value),
                Parameter::Boolean(value) => query.bind(value),
                Parameter::Texts(values) => query.bind(values),
                Parameter::Uuids(values) => query.bind(values),
                Parameter::Integers(values) => query.bind(values),
                Parameter::BigInts(values) => query.bind(values),
                Parameter::OptionalBigInts(values) => query.bind(values),
            };
        }
        query.fetch_all(&mut **session).await
    }

    /// Executes it in whatever transaction `connection` is in, without preparing anything there.
    pub(super) async fn fetch_in(self, connection: &mut PgConnection) -> Result<Vec<PgRow>, sqlx::Error> {
        sqlx::raw_sql(AssertSqlSafe(self.text()))
            .fetch_all(connection)
            .await
    }

    /// The SQL text with the values in their places.
    fn text(&self) -> String {
        let mut parts = self.sql.split('$');
        let mut text = parts.next().unwrap_or_default().to_owned();
        for part in parts {
            let (digit, rest) = part.split_at(1);
            let place: usize = digit.parse().expect("our SQL has $ only before a digit");
            self.parameters[place - 1].write(&mut text);
            text.push_str(rest);
        }
        text
    }
}

impl Parameter<'_> {
    fn write(&self, text: &mut String) {
        match self {
            Self::Text(value) => write_text(text, value),
            Self::Uuid(value) => write_uuid(text, *value),
            Self::Integer(value) => write_number(text, *value, "integer"),
            Self::BigInt(value) => write_number(text, *value, "bigint"),
            Self::Boolean(value) => text.push_str(if *value { "true" } else { "false" }),
            Self::Texts(values) => write_array(text, values, "text", |text, value| write_text(text, value)),
            Self::Uuids(values) => write_array(text, values, "uuid", |text, value| write_uuid(text, *value)),
            Self::Integers(values) => write_array(text, values, "integer", |text, value| {
                write_number(text, *value, "integer");
            }),
            Self::BigInts(values) => write_array(text, values, "bigint", |text, value| {
                write_number(text, *value, "bigint");
            }),
            Self::OptionalBigInts(values) => write_array(text, values, "bigint", |text, value| match value {
                Some(value) => write_number(text, *value, "bigint"),
                None => text.push_str("NULL"),
            }),
        }
    }
}

/// As hexadecimal digits: whatever `standard_conforming_strings` is, no character of it has a meaning.
fn write_text(text: &mut String, value: &str) {
    text.push_str("convert_from(decode('");
    for byte in value.bytes() {
        let _ = write!(text, "{byte:02x}");
    }
    text.push_str("', 'hex'), 'UTF8')");
}

fn write_uuid(text: &mut String, value: Uuid) {
    let _ = write!(text, "'{value}'::uuid");
}

fn write_number(text: &mut String, value: impl std::fmt::Display, kind: &str) {
    let _ = write!(text, "('{value}'::{kind})");
}

fn write_array<T>(text: &mut String, values: &[T], kind: &str, write: impl Fn(&mut String, &T)) {
    text.push_str("ARRAY[");
    for (place, value) in values.iter().enumerate() {
        if place > 0 {
            text.push(',');
        }
        write(text, value);
    }
    let _ = write!(text, "]::{kind}[]");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(sql: &str, bind: impl FnOnce(Statement<'static>) -> Statement<'static>) -> String {
        bind(Statement::new(&sql.into())).text()
    }

    #[test]
    fn values_stand_where_their_numbers_are() {
        let one = text("$2 + $1 < $2::bigint", |s| s.bind(1_i32).bind(-2_i64));
        assert_eq!(one, "('-2'::bigint) + ('1'::integer) < ('-2'::bigint)::bigint");
        assert_eq!(text("SELECT 1", |s| s), "SELECT 1");
        let arrays = text("$1,$2", |s| {
            s.bind(vec![Some(7_i64), None]).bind(Vec::<i32>::new())
        });
        assert_eq!(arrays, "ARRAY[('7'::bigint),NULL]::bigint[],ARRAY[]::integer[]");
    }

    #[test]
    fn text_is_written_as_digits_and_never_replaced_again() {
        let hostile = "'; DROP TABLE x; -- $1 \\";
        let written = text("f($1, $2)", |s| s.bind(hostile).bind(vec![hostile]));
        let digits: String = hostile.bytes().map(|byte| format!("{byte:02x}")).collect();
        let literal = format!("convert_from(decode('{digits}', 'hex'), 'UTF8')");
        assert_eq!(written, format!("f({literal}, ARRAY[{literal}]::text[])"));
    }
}
