//! The sockets of a link and the reason of its end. After a cut, new sockets are shut down immediately.

use std::net::Shutdown;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use socket2::Socket;
use tokio::sync::watch;

use crate::apiserver::connection::error::LinkError;

/// A reference to a socket, which the connection's task keeps until the connection ends.
pub(super) type Kept = Arc<Socket>;

#[derive(Debug, Default)]
pub(super) struct Sockets {
    open: Mutex<Vec<Weak<Socket>>>,
    end: watch::Sender<Option<End>>,
}

#[derive(Clone, Debug)]
pub(super) enum End {
    /// A call of [`Sockets::cut`].
    Cut,
    /// The end of its only connection.
    Over(String),
}

impl End {
    pub(super) fn error(&self) -> LinkError {
        LinkError::Broken(match self {
            Self::Cut => "closed by nodelb".into(),
            Self::Over(why) => why.clone(),
        })
    }
}

impl Sockets {
    /// Registers a socket until the result is dropped.
    pub(super) fn keep(&self, socket: Socket) -> Kept {
        let kept = Arc::new(socket);
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        open.retain(|socket| socket.strong_count() > 0);
        open.push(Arc::downgrade(&kept));
        // The lock prevents a race: `cut` sets the end before it takes the lock, so that either `cut` sees this socket
        // or this function sees the cut.
        if self.cut_error().is_some() {
            shut_down(&kept);
        }
        kept
    }

    pub(super) fn cut(&self) {
        self.end_with(End::Cut);
        let open = std::mem::take(&mut *self.open.lock().unwrap_or_else(PoisonError::into_inner));
        open.iter().filter_map(Weak::upgrade).for_each(|socket| shut_down(&socket));
    }

    /// Records the end of the only connection.
    pub(super) fn over(&self, why: String) {
        self.end_with(End::Over(why));
    }

    fn end_with(&self, end: End) {
        self.end.send_if_modified(|current| {
            // A cut takes precedence, because it also ends the connection.
            let replaces = !matches!(current, Some(End::Cut));
            if replaces {
                *current = Some(end);
            }
            replaces
        });
    }

    pub(super) fn end(&self) -> Option<End> {
        self.end.borrow().clone()
    }

    /// The error for the reader of a body, if the link was cut.
    pub(super) fn cut_error(&self) -> Option<LinkError> {
        self.end.borrow().as_ref().filter(|end| matches!(end, End::Cut)).map(End::error)
    }

    pub(super) async fn ended(&self) -> LinkError {
        let mut end = self.end.subscribe();
        loop {
            if let Some(end) = &*end.borrow_and_update() {
                return end.error();
            }
            // Never fails, because `self` owns the sender.
            if end.changed().await.is_err() {
                return End::Cut.error();
            }
        }
    }
}

fn shut_down(socket: &Socket) {
    // Fails only if the connection has already ended.
    let _ = socket.shutdown(Shutdown::Both);
}
