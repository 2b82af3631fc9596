use std::fmt::{self, Write};
use std::sync::{Arc, Mutex};

use nodelb_host::messages;
use tracing::field::{Field, Visit};
use tracing::{Event, Subscriber};
use tracing_subscriber::Registry;
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};

use super::Owned;

/// Records what a visitor sees of each event: of the original, and of its copy.
#[derive(Clone, Default)]
struct Seen {
    live: Arc<Mutex<Vec<String>>>,
    copies: Arc<Mutex<Vec<Owned>>>,
}

struct Note(String);

impl Visit for Note {
    fn record_str(&mut self, field: &Field, value: &str) {
        write!(self.0, " {field}={value}").unwrap();
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        write!(self.0, " {field}={value:?}").unwrap();
    }
}

fn note(event: &Event<'_>) -> String {
    let metadata = event.metadata();
    let mut note = Note(format!("{} {} {:?}", metadata.level(), metadata.target(), metadata.line()));
    event.record(&mut note);
    note.0
}

impl<S: Subscriber> Layer<S> for Seen {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        self.live.lock().unwrap().push(note(event));
        self.copies.lock().unwrap().push(Owned::new(event));
    }
}

#[test]
fn a_copy_has_the_metadata_and_the_fields_of_the_event() {
    let seen = Seen::default();
    let subscriber = Registry::default().with(seen.clone());
    tracing::subscriber::with_default(subscriber, || {
        let (service, name) = ("shop/web", String::from("two\nlines"));
        tracing::info!(message_id = %messages::APPLIED, %service, name, operations = 3_u64, "applied: {service}");
        tracing::warn!(error = ?Some(1.5), is_on = true, "no argument");
        tracing::error!(target: "other", absent = tracing::field::Empty, less = -1_i64, "{{}}");
        tracing::debug!(only = "a field");
    });
    let live = seen.live.lock().unwrap().clone();
    assert_eq!(live.len(), 4);
    assert!(live[0].contains("name=two\nlines"), "{live:?}");
    let again = Seen::default();
    let subscriber = Registry::default().with(again.clone());
    let copies = std::mem::take(&mut *seen.copies.lock().unwrap());
    std::thread::spawn(move || copies.iter().for_each(|copy| copy.replay(&subscriber))).join().unwrap();
    assert_eq!(*again.live.lock().unwrap(), live);
}
