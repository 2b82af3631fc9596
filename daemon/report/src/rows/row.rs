//! A row: the fields of a struct as the columns of a table.

use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use strum::VariantNames;

use crate::output::schema::Schema;
use crate::output::table::{Cell, Style, Table};
use crate::time::Time;
use nodelb_core::compile::select::Choice;
use nodelb_core::history::What;
use nodelb_core::model::addr::L4Addr;
use nodelb_core::model::service::BackendState;
use nodelb_core::source_report::SourceState;
use nodelb_core::state::status::Status;

pub trait Row: Serialize + DeserializeOwned + JsonSchema {
    /// The name and columns of the table.
    fn schema() -> &'static Schema;

    /// The cells, one for each column. Ages are computed from `now`.
    fn cells(&self, now: Time) -> Vec<Cell<'_>>;
}

/// A table without rows, and with the text that replaces it.
pub(super) fn empty_table<R: Row>(style: &Style) -> Table {
    let schema = R::schema();
    Table::new(schema, style).or_text(format!("No {} found.", schema.name.replace('_', " ")))
}

pub fn table<R: Row>(rows: &[R], now: Time, style: &Style) -> Table {
    let mut table = empty_table::<R>(style);
    rows.iter().for_each(|row| table.push(&row.cells(now)));
    table
}

pub trait ToCell {
    /// The cell. Ages are computed from `now`.
    fn to_cell(&self, now: Time) -> Cell<'_>;
}

/// A duration in microseconds; seconds with a fraction in JSON.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Micros(pub u64);

impl Serialize for Micros {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_f64(self.0 as f64 / 1e6)
    }
}

impl<'de> Deserialize<'de> for Micros {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a duration, not negative")]
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(Self((f64::deserialize(deserializer)?.max(0.0) * 1e6).round() as u64))
    }
}

impl JsonSchema for Micros {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Seconds".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({ "type": "number", "minimum": 0, "description": "Seconds." })
    }
}

/// Defines the cells of types, with the value and the time from which ages are computed.
macro_rules! cells {
    ($($type:ty: |$value:pat_param, $now:pat_param| $cell:expr;)*) => {
        $(impl ToCell for $type {
            fn to_cell(&self, $now: Time) -> Cell<'_> {
                let $value = self;
                $cell
            }
        })*
    };
}

cells! {
    String: |text, _| Cell::Text(text.as_str().into());
    u64: |number, _| Cell::Number(*number);
    f64: |rate, _| Cell::Text(format!("{rate:.1}").into());
    serde_json::Value: |data, _| Cell::Text(data.to_string().into());
    bool: |flag, _| Cell::Flag(*flag);
    Time: |time, now| Cell::Since { time: *time, now };
    Micros: |duration, _| Cell::Duration(duration.0);
    L4Addr: |address, _| Cell::Address(*address);
    Vec<String>: |values, _| Cell::List(values.as_slice().into());
    Vec<L4Addr>: |values, _| Cell::Addresses(values);
    Status: |word, _| Cell::Text(Self::VARIANTS[*word as usize].into());
    BackendState: |word, _| Cell::Text(Self::VARIANTS[*word as usize].into());
    Choice: |word, _| Cell::Text(Self::VARIANTS[*word as usize].into());
    What: |word, _| Cell::Text(Self::VARIANTS[*word as usize].into());
    SourceState: |word, _| Cell::Text(Self::VARIANTS[*word as usize].into());
}

impl<T: ToCell> ToCell for Option<T> {
    fn to_cell(&self, now: Time) -> Cell<'_> {
        self.as_ref().map_or(Cell::None, |value| value.to_cell(now))
    }
}

/// Defines row types. Each field has its column: the constructor of [`crate::output::schema::Column`] and the heading.
macro_rules! rows {
    ($($(#[$about:meta])* $name:ident in $table:literal {
        $($(#[$meta:meta])* $field:ident: $type:ty = $column:ident($($argument:expr),*) $(.$modifier:ident())?,)*
    })*) => {
        $($(#[$about])*
        #[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
        pub struct $name {
            $($(#[$meta])* pub $field: $type,)*
        }

        impl $crate::rows::row::Row for $name {
            fn schema() -> &'static $crate::output::schema::Schema {
                use $crate::output::schema::{Column, Schema};
                static SCHEMA: Schema =
                    Schema { name: $table, columns: &[$(Column::$column($($argument),*)$(.$modifier())?),*] };
                &SCHEMA
            }

            fn cells(&self, now: crate::time::Time) -> Vec<$crate::output::table::Cell<'_>> {
                vec![$($crate::rows::row::ToCell::to_cell(&self.$field, now)),*]
            }
        })*
    };
}

pub(super) use rows;
