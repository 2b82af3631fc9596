use super::*;

#[test]
fn servers_of_resolv_conf() {
    let text = "# comment\nsearch example.com\nnameserver 192.0.2.53\nnameserver  2001:db8::53 \nnameserver nonsense\n\
                options edns0\nnameserver 192.0.2.54\nnameserver 192.0.2.55\n";
    let servers: Vec<String> = of_resolv_conf(text).iter().map(ToString::to_string).collect();
    assert_eq!(servers, ["192.0.2.53:53", "[2001:db8::53]:53", "192.0.2.54:53"]);
    assert_eq!(of_resolv_conf("")[0].to_string(), "127.0.0.1:53");
}

#[test]
fn a_server_that_does_not_respond_is_asked_last_for_a_while() {
    let [a, b]: [SocketAddr; 2] = ["192.0.2.1:53", "192.0.2.2:53"].map(|text| text.parse().unwrap());
    let mut servers = Servers::default();
    assert!(servers.set(&[a, b]) && !servers.set(&[a, b]));
    servers.note(a, false, Moment(0));
    assert_eq!(servers.in_order(Moment(1)), [b, a]);
    assert_eq!(servers.in_order(Moment(LAST_FOR)), [a, b]);
    servers.note(b, false, Moment(1));
    assert_eq!(servers.in_order(Moment(2)), [a, b], "all of them are asked");
    servers.note(a, true, Moment(2));
    assert_eq!(servers.in_order(Moment(3)), [a, b]);
}
