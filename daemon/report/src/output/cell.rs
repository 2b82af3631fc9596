//! One value of a table. [`super::table`] defines its form in text.

use std::borrow::Cow;

use crate::time::Time;
use nodelb_core::model::addr::L4Addr;

/// One value of a table, which may borrow from its row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cell<'a> {
    /// No value: `-` in text.
    None,
    /// A text. An empty one is `-` in text output.
    Text(Cow<'a, str>),
    Address(L4Addr),
    Number(u64),
    Flag(bool),
    /// Several texts. Text of a limited width shows at most five of them and the number of the others.
    List(Cow<'a, [String]>),
    /// Several addresses, possibly thousands, shown like a list.
    Addresses(&'a [L4Addr]),
    /// A time: the time since it in text, the time of day in wide text.
    Since {
        time: Time,
        now: Time,
    },
    /// The duration of an operation, in microseconds: `350us` in text.
    Duration(u64),
}

impl Cell<'_> {
    /// Whether text shows nothing but a dash.
    pub(crate) fn is_empty(&self) -> bool {
        match self {
            Self::None => true,
            Self::Text(text) => text.is_empty(),
            Self::List(values) => values.is_empty(),
            Self::Addresses(values) => values.is_empty(),
            Self::Address(_) | Self::Number(_) | Self::Flag(_) => false,
            Self::Since { .. } | Self::Duration(_) => false,
        }
    }
}
