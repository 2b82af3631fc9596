//! A response: one list of rows, or several.

use std::slice;

use schemars::JsonSchema;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::row::{self, Row};
use crate::output::table::{Style, Table};
use crate::time::Time;

pub trait Answer: Serialize + DeserializeOwned + JsonSchema + Send + 'static {
    /// The text form. Ages are computed from `now`.
    fn text(&self, now: Time, style: &Style) -> String;
}

/// A response with the time from which its ages are computed.
#[derive(Debug)]
pub struct Dated<A> {
    pub answer: A,
    pub now: Time,
}

/// A response that can be rendered without knowing its type.
pub trait Rendered: Send {
    fn text(&self, style: &Style) -> String;

    /// The JSON form, on one line.
    ///
    /// # Errors
    /// If the response cannot be written as JSON, which no existing type can cause.
    fn json(&self) -> serde_json::Result<String>;
}

impl<A: Answer> Rendered for Dated<A> {
    fn text(&self, style: &Style) -> String {
        self.answer.text(self.now, style)
    }

    fn json(&self) -> serde_json::Result<String> {
        Ok(serde_json::to_string(&self.answer)? + "\n")
    }
}

/// A part of a response: rows, or a single one.
pub(super) trait Part {
    fn table(&self, now: Time, style: &Style) -> Table;
}

impl<R: Row> Part for Vec<R> {
    fn table(&self, now: Time, style: &Style) -> Table {
        row::table(self, now, style)
    }
}

impl<R: Row> Part for R {
    fn table(&self, now: Time, style: &Style) -> Table {
        row::table(slice::from_ref(self), now, style)
    }
}

/// Defines responses that are shown as the tables of their fields.
macro_rules! answers {
    ($($(#[$about:meta])* $name:ident { $($(#[$meta:meta])* $field:ident: $part:ty,)* })*) => {
        $($(#[$about])*
        #[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
        pub struct $name {
            $($(#[$meta])* pub $field: $part,)*
        }

        impl $crate::rows::answer::Answer for $name {
            fn text(&self, now: crate::time::Time, style: &$crate::output::table::Style) -> String {
                use $crate::rows::answer::Part;
                $crate::output::table::sections(&[$(self.$field.table(now, style)),*])
            }
        })*
    };
}

pub(super) use answers;
