use super::*;

fn field(number: u8, content: &[u8]) -> Vec<u8> {
    let mut bytes = vec![number << 3 | 2, u8::try_from(content.len()).unwrap()];
    bytes.extend_from_slice(content);
    bytes
}

fn enveloped(kind: &str, raw: &[u8]) -> Vec<u8> {
    let kind = [field(1, b"v1"), field(2, kind.as_bytes())].concat();
    [b"k8s\0".to_vec(), field(1, &kind), field(2, raw)].concat()
}

#[test]
fn a_service() {
    let metadata = [field(1, b"web"), field(2, b""), field(11, &[field(1, b"a"), field(2, b"b")].concat())].concat();
    let port = [field(1, b"http"), vec![3 << 3, 0xbb, 0x03], field(4, &[1 << 3, 0, 2 << 3, 80])].concat();
    let spec = [field(1, &port), field(1, &field(1, b"other")), field(4, b"ClusterIP")].concat();
    let raw = [field(1, &metadata), field(2, &spec)].concat();
    assert_eq!(
        decode(&enveloped("Service", &raw)),
        Some(json!({
            "apiVersion": "v1", "kind": "Service", "metadata": {"name": "web", "labels": {"a": "b"}},
            "spec": {"type": "ClusterIP", "ports": [{"name": "http", "port": 443, "targetPort": 80}, {"name": "other"}]},
        }))
    );
}

#[test]
fn what_is_not_understood() {
    assert_eq!(decode(b"{}"), None);
    assert_eq!(decode(&enveloped("Pod", b"")), None);
    let whole = enveloped("Namespace", &field(1, &field(1, b"shop")));
    for length in 0..whole.len() {
        let _ = decode(&whole[..length]);
    }
}
