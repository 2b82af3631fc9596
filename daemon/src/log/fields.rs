//! The fields of plain lines: all except the message id.

use std::error::Error;
use std::fmt;

use tracing::field::{Field, Visit};
use tracing_subscriber::field::{MakeVisitor, VisitFmt, VisitOutput};
use tracing_subscriber::fmt::format::{DefaultVisitor, Writer};

use super::limit::ID_FIELD;

/// Formats fields as usual, but omits the message id.
#[derive(Clone, Copy, Debug)]
pub(super) struct WithoutId;

impl<'w> MakeVisitor<Writer<'w>> for WithoutId {
    type Visitor = Visible<'w>;

    fn make_visitor(&self, target: Writer<'w>) -> Visible<'w> {
        Visible(DefaultVisitor::new(target, true))
    }
}

/// See [`WithoutId`].
#[derive(Debug)]
pub(super) struct Visible<'w>(DefaultVisitor<'w>);

impl Visit for Visible<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        if field.name() != ID_FIELD {
            self.0.record_debug(field, value);
        }
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.0.record_str(field, value);
    }

    fn record_error(&mut self, field: &Field, value: &(dyn Error + 'static)) {
        self.0.record_error(field, value);
    }
}

impl VisitOutput<fmt::Result> for Visible<'_> {
    fn finish(self) -> fmt::Result {
        self.0.finish()
    }
}

impl VisitFmt for Visible<'_> {
    fn writer(&mut self) -> &mut dyn fmt::Write {
        self.0.writer()
    }
}
