//! A response: one list of rows, or several.

use schemars::JsonSchema;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::output::table::Style;
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

/// Defines responses. Each field is a list of rows.
macro_rules! answers {
    ($($(#[$about:meta])* $name:ident { $($(#[$meta:meta])* $field:ident: $row:ty,)* })*) => {
        $($(#[$about])*
        #[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
        pub struct $name {
            $($(#[$meta])* pub $field: Vec<$row>,)*
        }

        impl $crate::rows::answer::Answer for $name {
            fn text(&self, now: crate::time::Time, style: &$crate::output::table::Style) -> String {
                let tables = vec![$($crate::rows::row::table(&self.$field, now)),*];
                $crate::output::table::Page(tables).to_styled_text(style)
            }
        })*
    };
}

pub(super) use answers;
