//! A statement with its parameters, and the two ways to send it.
//!
//! In a session of ours a statement is prepared once and then takes one round trip. Through a pooler, and in a
//! user's transaction, it is sent as text in one message: a prepared statement might be gone, or be another
//! client's, when it is executed. In the text every value is digits, so that none can be taken for SQL.

use std::fmt::Write as _;
use std::sync::Arc;

use sqlx::postgres::PgRow;
use sqlx::{AssertSqlSafe, PgConnection};
use uuid::Uuid;

use super::session::{self, Session};
use super::warnings;
use crate::store::fence::{Database, filled, literal};

/// A statement whose parameters are being bound.
pub(super) struct Statement<'q> {
    sql: Arc<str>,
    parameters: Vec<Parameter<'q>>,
}

/// One value, or an array of them. `None` is NULL.
pub(super) enum Parameter<'q> {
    Text(Option<&'q str>),
    Uuid(Option<Uuid>),
    Integer(Option<i32>),
    BigInt(Option<i64>),
    Boolean(Option<bool>),
    Texts(Vec<Option<&'q str>>),
    /// Texts that were made for the statement.
    OwnTexts(Vec<Option<String>>),
    Uuids(Vec<Option<Uuid>>),
    Integers(Vec<Option<i32>>),
    BigInts(Vec<Option<i64>>),
    Booleans(Vec<Option<bool>>),
}

macro_rules! from {
    ($($kind:ty => $one:ident, $many:ident);+ $(;)?) => {
        $(
            impl<'q> From<$kind> for Parameter<'q> {
                fn from(value: $kind) -> Self {
                    Self::$one(Some(value))
                }
            }

            impl<'q> From<Option<$kind>> for Parameter<'q> {
                fn from(value: Option<$kind>) -> Self {
                    Self::$one(value)
                }
            }

            impl<'q> From<Vec<$kind>> for Parameter<'q> {
                fn from(values: Vec<$kind>) -> Self {
                    Self::$many(values.into_iter().map(Some).collect())
                }
            }

            impl<'q> From<Vec<Option<$kind>>> for Parameter<'q> {
                fn from(values: Vec<Option<$kind>>) -> Self {
                    Self::$many(values)
                }
            }
        )+
    };
}

from!(
    &'q str => Text, Texts;
    Uuid => Uuid, Uuids;
    i32 => Integer, Integers;
    i64 => BigInt, BigInts;
    bool => Boolean, Booleans;
);

impl From<Vec<Option<String>>> for Parameter<'_> {
    fn from(values: Vec<Option<String>>) -> Self {
        Self::OwnTexts(values)
    }
}

impl<'q> Statement<'q> {
    /// A statement with the text `sql`, whose parameters are `$1`, `$2` and so on.
    pub(super) fn new(sql: &Arc<str>) -> Self {
        Self {
            sql: Arc::clone(sql),
            parameters: Vec::new(),
        }
    }

    /// Binds the next parameter.
    pub(super) fn bind(mut self, value: impl Into<Parameter<'q>>) -> Self {
        self.parameters.push(value.into());
        self
    }

    /// Executes it in a session of the store.
    pub(super) async fn fetch_all(self, session: &mut Session) -> Result<Vec<PgRow>, sqlx::Error> {
        let (is_ours, hears) = (session.is_ours(), session.waits_for_standby());
        let connection = session.for_statement();
        let rows = async {
            if is_ours {
                self.fetch_prepared(connection).await
            } else {
                self.fetch_pooled(connection).await
            }
        };
        let (rows, warned) = if hears {
            warnings::heard_during(rows).await
        } else {
            (rows.await, false)
        };
        if matches!(rows, Ok(_) | Err(sqlx::Error::Database(_))) {
            session.answered(warned);
        }
        rows
    }

    async fn fetch_prepared(self, connection: &mut PgConnection) -> Result<Vec<PgRow>, sqlx::Error> {
        let mut query = sqlx::query(AssertSqlSafe(self.sql));
        for parameter in self.parameters {
            query = match parameter {
                Parameter::Text(value) => query.bind(value),
                Parameter::Uuid(value) => query.bind(value),
                Parameter::Integer(value) => query.bind(value),
                Parameter::BigInt(value) => query.bind(value),
                Parameter::Boolean(value) => query.bind(value),
                Parameter::Texts(values) => query.bind(values),
                Parameter::OwnTexts(values) => query.bind(values),
                Parameter::Uuids(values) => query.bind(values),
                Parameter::Integers(values) => query.bind(values),
                Parameter::BigInts(values) => query.bind(values),
                Parameter::Booleans(values) => query.bind(values),
            };
        }
        query.fetch_all(connection).await
    }

    async fn fetch_pooled(self, connection: &mut PgConnection) -> Result<Vec<PgRow>, sqlx::Error> {
        let text = session::for_one_transaction() + &self.text();
        let mut rows = sqlx::raw_sql(AssertSqlSafe(text)).fetch_all(connection).await?;
        // The row of the settings.
        drop(rows.remove(0));
        Ok(rows)
    }

    /// Executes it in the current transaction of `connection`, without preparing anything there.
    pub(super) async fn fetch_in(self, connection: &mut PgConnection) -> Result<Vec<PgRow>, sqlx::Error> {
        sqlx::raw_sql(AssertSqlSafe(self.text()))
            .fetch_all(connection)
            .await
    }

    /// The SQL text with the values.
    fn text(&self) -> String {
        filled(&self.sql, |index, text| self.parameters[index].write(text))
    }
}

impl Parameter<'_> {
    fn write(&self, text: &mut String) {
        match self {
            Self::Text(value) => one(text, "pg_catalog.text", value.as_ref(), write_text),
            Self::Uuid(value) => one(text, "pg_catalog.uuid", value.as_ref(), write_plain),
            Self::Integer(value) => one(text, "integer", value.as_ref(), write_plain),
            Self::BigInt(value) => one(text, "bigint", value.as_ref(), write_plain),
            Self::Boolean(value) => one(text, "boolean", value.as_ref(), write_plain),
            Self::Texts(values) => array(text, "pg_catalog.text", values, write_text),
            Self::OwnTexts(values) => array(text, "pg_catalog.text", values, |text, value| {
                write_text(text, &value.as_str());
            }),
            Self::Uuids(values) => array(text, "pg_catalog.uuid", values, write_plain),
            Self::Integers(values) => array(text, "integer", values, write_plain),
            Self::BigInts(values) => array(text, "bigint", values, write_plain),
            Self::Booleans(values) => array(text, "boolean", values, write_plain),
        }
    }
}

fn one<T>(text: &mut String, kind: &str, value: Option<&T>, write: impl Fn(&mut String, &T)) {
    match value {
        Some(value) => write(text, value),
        None => text.push_str("NULL"),
    }
    text.push_str("::");
    text.push_str(kind);
}

fn array<T>(text: &mut String, kind: &str, values: &[Option<T>], write: impl Fn(&mut String, &T)) {
    text.push_str("ARRAY[");
    for (place, value) in values.iter().enumerate() {
        if place > 0 {
            text.push(',');
        }
        one(text, kind, value.as_ref(), &write);
    }
    let _ = write!(text, "]::{kind}[]");
}

fn write_text(text: &mut String, value: &&str) {
    text.push_str(&literal(Database::Postgres, value));
}

/// Writes a value that consists of letters, digits and `-` only.
fn write_plain(text: &mut String, value: &impl std::fmt::Display) {
    let _ = write!(text, "'{value}'");
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
        assert_eq!(one, "'-2'::bigint + '1'::integer < '-2'::bigint::bigint");
        assert_eq!(text("SELECT 1", |s| s), "SELECT 1");
        let rest = text("$1,$2,$3", |s| s.bind(true).bind(None::<Uuid>).bind(Uuid::nil()));
        assert_eq!(
            rest,
            "'true'::boolean,NULL::pg_catalog.uuid,'00000000-0000-0000-0000-000000000000'::pg_catalog.uuid"
        );
        let tenth = text("$10$1", |s| (0..10).fold(s, super::Statement::bind));
        assert_eq!(tenth, "'9'::integer'0'::integer");
        let arrays = text("$1,$2", |s| {
            s.bind(vec![Some(7_i64), None]).bind(Vec::<i32>::new())
        });
        assert_eq!(
            arrays,
            "ARRAY['7'::bigint,NULL::bigint]::bigint[],ARRAY[]::integer[]"
        );
    }

    #[test]
    fn text_is_written_as_digits_and_never_replaced_again() {
        let hostile = "'; DROP TABLE x; -- $1 \\";
        let written = text("f($1, $2)", |s| s.bind(hostile).bind(vec![hostile]));
        let digits: Vec<_> = hostile.bytes().map(|byte| format!("{byte:02x}")).collect();
        let digits = digits.concat();
        let literal =
            format!("pg_catalog.convert_from(pg_catalog.decode('{digits}', 'hex'), 'UTF8')::pg_catalog.text");
        assert_eq!(
            written,
            format!("f({literal}, ARRAY[{literal}]::pg_catalog.text[])")
        );
    }
}
