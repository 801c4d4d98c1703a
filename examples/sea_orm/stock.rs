//! The entity: a row with a version.

#![allow(missing_docs, reason = "the derive writes items without documentation")]

use sea_orm::entity::prelude::*;

/// An article and how many pieces of it there are.
#[derive(Clone, Debug, PartialEq, Eq, DeriveEntityModel)]
#[sea_orm(table_name = "stock")]
pub struct Model {
    #[sea_orm(primary_key, auto_increment = false)]
    pub id: i64,
    pub amount: i64,
    /// Each write adds one.
    pub version: i64,
}

/// None.
#[derive(Copy, Clone, Debug, EnumIter, DeriveRelation)]
pub enum Relation {}

impl ActiveModelBehavior for ActiveModel {}
