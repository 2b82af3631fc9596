//! gRPC with streams in both directions that last through everything that happens to nodelb and to the service: a stream
//! goes on with its backend until the backend ends it, and new streams reach the new backends.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use futures_util::stream::{BoxStream, StreamExt, poll_fn};
use hyper::http::uri::PathAndQuery;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tokio::sync::{mpsc, watch};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::timeout;
use tokio_util::bytes::{Buf, BufMut};
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::server::StreamingService;
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Response, Status, Streaming};

use crate::host::{Host, eventually, is_served_by, service, socket};
use crate::sandbox;

const SERVICE: &str = "198.51.100.10:80";
const OLD: [&str; 2] = ["192.0.2.21:50051", "192.0.2.22:50051"];
const NEW: [&str; 2] = ["192.0.2.23:50051", "192.0.2.24:50051"];
/// The number of channels that are opened before a change of backends, and after it.
const CHANNELS: usize = 16;
/// The time for the answer to a message.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Messages are text, as protobuf is of no interest here.
#[derive(Clone, Copy)]
struct Text;

impl Codec for Text {
    type Encode = String;
    type Decode = String;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        *self
    }

    fn decoder(&mut self) -> Self {
        *self
    }
}

impl Encoder for Text {
    type Item = String;
    type Error = Status;

    fn encode(&mut self, item: String, buffer: &mut EncodeBuf<'_>) -> Result<(), Status> {
        buffer.put_slice(item.as_bytes());
        Ok(())
    }
}

impl Decoder for Text {
    type Item = String;
    type Error = Status;

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<String>, Status> {
        let bytes = buffer.copy_to_bytes(buffer.remaining());
        String::from_utf8(bytes.to_vec()).map(Some).map_err(|error| Status::internal(error.to_string()))
    }
}

/// Repeats each message after the name of the backend.
#[derive(Clone)]
struct Echo(&'static str);

impl StreamingService<String> for Echo {
    type Response = String;
    type ResponseStream = BoxStream<'static, Result<String, Status>>;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Self::ResponseStream>, Status>> + Send>>;

    fn call(&mut self, request: Request<Streaming<String>>) -> Self::Future {
        let name = self.0;
        let answers = request.into_inner().map(move |message| message.map(|text| format!("{name} {text}")));
        Box::pin(async move { Ok(Response::new(answers.boxed())) })
    }
}

/// A backend; its end is that of a stopped server: GOAWAY, and streams may end.
struct Server {
    stop: watch::Sender<bool>,
    task: JoinHandle<()>,
}

impl Server {
    fn start(runtime: &Runtime, at: &'static str) -> Self {
        let (stop, stopped) = watch::channel(false);
        let mut ended = stopped.clone();
        let listener = runtime.block_on(TcpListener::bind(at)).unwrap();
        let task = runtime.spawn(async move {
            let mut connections = JoinSet::new();
            loop {
                tokio::select! {
                    accepted = listener.accept() => {
                        let (stream, _) = accepted.unwrap();
                        connections.spawn(serve(TokioIo::new(stream), at, stopped.clone()));
                    }
                    _ = ended.wait_for(|it| *it) => break,
                }
            }
            drop(listener);
            while connections.join_next().await.is_some() {}
        });
        Self { stop, task }
    }

    fn stop(self, runtime: &Runtime) {
        self.stop.send_replace(true);
        runtime.block_on(async { timeout(TIMEOUT, self.task).await.unwrap().unwrap() });
    }
}

async fn serve(stream: TokioIo<tokio::net::TcpStream>, name: &'static str, mut stopped: watch::Receiver<bool>) {
    let builder = auto::Builder::new(TokioExecutor::new()).http2_only();
    let answer = service_fn(move |request| async move {
        Ok::<_, Infallible>(tonic::server::Grpc::new(Text).streaming(Echo(name), request).await)
    });
    let mut connection = std::pin::pin!(builder.serve_connection(stream, answer));
    tokio::select! {
        ended = connection.as_mut() => return drop(ended),
        _ = stopped.wait_for(|it| *it) => connection.as_mut().graceful_shutdown(),
    }
    drop(connection.await);
}

/// A stream that is in use.
struct Talk {
    messages: mpsc::UnboundedSender<String>,
    answers: Streaming<String>,
}

impl Talk {
    async fn begin(channel: &Channel) -> Self {
        let (messages, mut sent) = mpsc::unbounded_channel();
        let mut client = tonic::client::Grpc::new(channel.clone());
        timeout(TIMEOUT, client.ready()).await.expect("a channel in time").expect("a channel");
        let requests = Request::new(poll_fn(move |context| sent.poll_recv(context)));
        let asked = client.streaming(requests, PathAndQuery::from_static("/test.Echo/Talk"), Text);
        let answers = timeout(TIMEOUT, asked).await.expect("a stream in time").expect("a stream").into_inner();
        Self { messages, answers }
    }

    /// Sends a message, and returns the name of the backend that repeats it.
    async fn say(&mut self, text: &str) -> String {
        self.messages.send(text.to_owned()).unwrap();
        let answer = timeout(TIMEOUT, self.answers.message()).await.expect("an answer in time").expect("an answer");
        let answer = answer.expect("the stream goes on");
        let (name, echo) = answer.split_once(' ').unwrap();
        assert_eq!(echo, text);
        name.to_owned()
    }
}

/// Channels of one client each with a stream that lasts.
struct Clients {
    channels: Vec<Channel>,
    stop: watch::Sender<bool>,
    talks: Vec<JoinHandle<String>>,
    /// The number of messages that were answered.
    answered: Arc<AtomicU64>,
}

impl Clients {
    fn start(runtime: &Runtime) -> Self {
        let (stop, stopped) = watch::channel(false);
        let answered = Arc::new(AtomicU64::new(0));
        let endpoint = Endpoint::from_shared(format!("http://{SERVICE}")).unwrap();
        // A connection that does not work is noticed.
        let endpoint = endpoint
            .connect_timeout(TIMEOUT)
            .http2_keep_alive_interval(Duration::from_millis(100))
            .keep_alive_timeout(TIMEOUT);
        let channels: Vec<Channel> =
            runtime.block_on(async { (0..CHANNELS).map(|_| endpoint.connect_lazy()).collect() });
        let talks = channels.iter().map(|channel| {
            let (channel, stopped, answered) = (channel.clone(), stopped.clone(), Arc::clone(&answered));
            runtime.spawn(async move {
                let mut talk = Talk::begin(&channel).await;
                let first = talk.say("0").await;
                while !*stopped.borrow() {
                    assert_eq!(talk.say("more").await, first, "a stream stays with its backend");
                    answered.fetch_add(1, Ordering::Relaxed);
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
                first
            })
        });
        let talks = talks.collect();
        Self { channels, stop, talks, answered }
    }

    /// Waits until there was a number of answers from now on.
    fn go_on(&self) {
        let before = self.answered.load(Ordering::Relaxed);
        eventually("answers on every stream", || {
            assert!(self.talks.iter().all(|talk| !talk.is_finished()), "a stream has ended");
            self.answered.load(Ordering::Relaxed) > before + 20 * CHANNELS as u64
        });
    }

    /// Ends the streams, and returns the backend of each.
    fn end(&mut self, runtime: &Runtime) -> Vec<String> {
        self.stop.send_replace(true);
        self.talks.drain(..).map(|talk| runtime.block_on(talk).unwrap()).collect()
    }

    /// The backends of one new stream of each channel.
    fn ask(&self, runtime: &Runtime) -> Vec<String> {
        let ask = |channel| runtime.block_on(async { Talk::begin(channel).await.say("?").await });
        self.channels.iter().map(ask).collect()
    }
}

fn distinct(names: &[String]) -> BTreeSet<&str> {
    names.iter().map(String::as_str).collect()
}

#[test]
fn grpc_streams_last_and_new_ones_reach_the_new_backends() {
    sandbox::run("grpc::grpc_streams_last_and_new_ones_reach_the_new_backends", |sandbox| {
        let host = Host::new(sandbox);
        let runtime = Runtime::new().unwrap();
        let old = OLD.map(|at| Server::start(&runtime, at));
        let _new = NEW.map(|at| Server::start(&runtime, at));
        assert!(OLD.iter().chain(&NEW).all(|at| socket(at).port() == 50_051));
        host.serve("a.toml", &service("shop/grpc", &[SERVICE], &OLD));
        let daemon = host.start();
        let mut before = Clients::start(&runtime);
        before.go_on();

        // A kill, a pause without a daemon, a restart, an orderly stop and a start.
        daemon.kill();
        before.go_on();
        let daemon = host.start();
        before.go_on();
        daemon.stop();
        before.go_on();

        // Other backends while no daemon runs. The streams go on; new connections reach the new backends.
        host.serve("a.toml", &service("shop/grpc", &[SERVICE], &NEW));
        let daemon = host.start();
        eventually("the new backends", || {
            is_served_by(&format!("{SERVICE}/TCP"), &NEW.map(|at| format!("{at}/TCP")).each_ref().map(String::as_str))
        });
        before.go_on();
        let mut after = Clients::start(&runtime);
        after.go_on();
        daemon.kill();
        let _daemon = host.start();
        [&before, &after].into_iter().for_each(Clients::go_on);

        let names = before.end(&runtime);
        assert_eq!(distinct(&names), OLD.into(), "the streams from before");
        let other = before.ask(&runtime);
        assert_eq!(other, names, "a new stream of a channel uses its connection, which stays where it is");
        assert_eq!(distinct(&after.end(&runtime)), NEW.into(), "the streams that began after the change");

        // The old backends end as servers do. These channels connect again, now to the new backends.
        old.into_iter().for_each(|server| server.stop(&runtime));
        assert_eq!(distinct(&before.ask(&runtime)), NEW.into(), "the streams after the end of the old backends");
        thread::sleep(Duration::from_millis(100));
        assert_eq!(after.ask(&runtime).len(), CHANNELS);
    });
}
