// Turns meshes in the browser by WebGL alone: no library, no network.
"use strict";
const bytes = (text) => Uint8Array.from(atob(text), (c) => c.charCodeAt(0)).buffer;
const canvas = document.getElementById("view");
const gl = canvas.getContext("webgl", { antialias: true });
if (!gl) document.getElementById("note").textContent = "This browser shows no WebGL: open implant.stl in another viewer.";
else {
  gl.getExtension("OES_element_index_uint");
  const compile = (kind, text) => {
    const shader = gl.createShader(kind);
    gl.shaderSource(shader, text); gl.compileShader(shader);
    return shader;
  };
  const program = gl.createProgram();
  gl.attachShader(program, compile(gl.VERTEX_SHADER, `
    attribute vec3 position, normal; attribute float value;
    uniform mat3 turn; uniform float scale, aspect; varying vec3 n; varying float v;
    void main() {
      vec3 p = turn * position * scale; n = turn * normal; v = value;
      gl_Position = vec4(p.x / aspect, p.y, -p.z * 0.4, 1.0);
    }`));
  gl.attachShader(program, compile(gl.FRAGMENT_SHADER, `
    precision mediump float; varying vec3 n; varying float v;
    uniform vec4 color; uniform float mapped;
    vec3 ramp(float t) {
      return clamp(vec3(1.5 - abs(4.0 * t - 3.0), 1.5 - abs(4.0 * t - 2.0), 1.5 - abs(4.0 * t - 1.0)), 0.0, 1.0);
    }
    void main() {
      float light = 0.35 + 0.65 * abs(normalize(n).z);
      vec3 base = mapped > 0.5 ? ramp(clamp(v, 0.0, 1.0)) : color.rgb;
      gl_FragColor = vec4(base * light, color.a);
    }`));
  gl.linkProgram(program); gl.useProgram(program);
  const at = (name) => gl.getUniformLocation(program, name);
  const buffer = (kind, data) => {
    const id = gl.createBuffer();
    gl.bindBuffer(kind, id); gl.bufferData(kind, data, gl.STATIC_DRAW);
    return id;
  };
  const meshes = CASE.meshes.map((mesh) => ({
    ...mesh,
    positions: buffer(gl.ARRAY_BUFFER, new Float32Array(bytes(mesh.positions))),
    normals: buffer(gl.ARRAY_BUFFER, new Float32Array(bytes(mesh.normals))),
    values: buffer(gl.ARRAY_BUFFER, new Float32Array(bytes(mesh.values))),
    faces: buffer(gl.ELEMENT_ARRAY_BUFFER, new Uint32Array(bytes(mesh.faces))),
  }));
  let [yaw, pitch] = CASE.view, zoom = 1, held = null;
  const multiply = (a, b) => {
    const out = new Float32Array(9);
    for (let c = 0; c < 3; c++) for (let r = 0; r < 3; r++)
      for (let k = 0; k < 3; k++) out[3 * c + r] += a[3 * k + r] * b[3 * c + k];
    return out;
  };
  const draw = () => {
    const [c, s, d, t] = [Math.cos(yaw), Math.sin(yaw), Math.cos(pitch), Math.sin(pitch)];
    // Patient space: x left, y back, z up; the eye looks at the face.
    const upright = [1, 0, 0, 0, 0, -1, 0, 1, 0];
    const turn = multiply([1, 0, 0, 0, d, t, 0, -t, d], multiply([c, 0, -s, 0, 1, 0, s, 0, c], upright));
    gl.clearColor(1, 1, 1, 1); gl.clear(gl.COLOR_BUFFER_BIT | gl.DEPTH_BUFFER_BIT);
    // At equal depth the first mesh is seen: the rim is drawn before the implant it is a part of.
    gl.enable(gl.DEPTH_TEST); gl.depthFunc(gl.LESS);
    gl.uniformMatrix3fv(at("turn"), false, turn);
    const isOn = (id) => document.getElementById(id).checked;
    const large = meshes.filter((mesh) => isOn(mesh.id));
    view(large, 0, CASE.strip, canvas.width, canvas.height - CASE.strip, (mesh) => isOn("mapped") && !mesh.own);
    const width = canvas.width / Math.max(CASE.columns, 1);
    meshes.filter((mesh) => mesh.own).forEach((mesh, number) => {
      const [column, row] = [number % CASE.columns, Math.floor(number / CASE.columns)];
      view([meshes[0], mesh], column * width, CASE.strip - (row + 1) * CASE.row, width, CASE.row, () => true);
    });
  };
  const view = (shown, x, y, width, height, isMapped) => {
    gl.viewport(x, y, width, height);
    const aspect = width / height;
    gl.uniform1f(at("scale"), zoom * Math.min(aspect, 1) / CASE.reach); gl.uniform1f(at("aspect"), aspect);
    for (const mesh of shown) {
      for (const [name, size, data] of [["position", 3, mesh.positions], ["normal", 3, mesh.normals], ["value", 1, mesh.values]]) {
        const place = gl.getAttribLocation(program, name);
        gl.bindBuffer(gl.ARRAY_BUFFER, data); gl.enableVertexAttribArray(place);
        gl.vertexAttribPointer(place, size, gl.FLOAT, false, 0, 0);
      }
      gl.uniform4fv(at("color"), mesh.color);
      gl.uniform1f(at("mapped"), mesh.mapped && isMapped(mesh) ? 1 : 0);
      gl.bindBuffer(gl.ELEMENT_ARRAY_BUFFER, mesh.faces);
      gl.drawElements(gl.TRIANGLES, mesh.count, gl.UNSIGNED_INT, 0);
    }
  };
  canvas.onpointerdown = (e) => { held = [e.clientX, e.clientY]; canvas.setPointerCapture(e.pointerId); };
  canvas.onpointerup = () => { held = null; };
  canvas.onpointermove = (e) => {
    if (!held) return;
    yaw += (e.clientX - held[0]) / 150; pitch += (e.clientY - held[1]) / 150;
    held = [e.clientX, e.clientY]; draw();
  };
  canvas.onwheel = (e) => { e.preventDefault(); zoom *= Math.exp(-e.deltaY / 800); draw(); };
  document.querySelectorAll("input").forEach((box) => { box.onchange = draw; });
  draw();
}
