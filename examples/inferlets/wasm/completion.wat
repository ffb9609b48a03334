;; A program as a core module: a completion of "Hello", 8 tokens long.
;;
;; alloc(n) gives room for n bytes of text; turn(pointer, length) gets a text there and gives
;; pointer << 32 | length of another. The first turn gets the arguments, each later one the answers
;; to the calls before it. What the second turn gets is the result of the run.
(module
  (memory (export "memory") 1)
  (global $turns (mut i32) (i32.const 0))
  ;; 0: the first turn's calls; 256: the last turn's, up to the value; 320: behind the value.
  (data (i32.const 0) "[{\22call\22:\22generate\22,\22id\22:1,\22text\22:\22Hello\22,\22params\22:{\22max_new_tokens\22:8,\22temperature\22:0}}]")
  (data (i32.const 256) "[{\22call\22:\22set_return\22,\22id\22:2,\22value\22:")
  (data (i32.const 320) "},{\22call\22:\22exit\22,\22id\22:3}]")
  ;; Texts lie at 4096, behind 64 bytes for what is put before an answer; memory grows for long ones.
  (func (export "alloc") (param $size i32) (result i32)
    (local $pages i32)
    (local.set $pages
      (i32.shr_u (i32.add (local.get $size) (i32.const 69759)) (i32.const 16)))
    (if (i32.gt_u (local.get $pages) (memory.size))
      (then (drop (memory.grow (i32.sub (local.get $pages) (memory.size))))))
    (i32.const 4160))
  (func (export "turn") (param $at i32) (param $size i32) (result i64)
    (global.set $turns (i32.add (global.get $turns) (i32.const 1)))
    (if (i32.eq (global.get $turns) (i32.const 1))
      (then (return (i64.const 89))))
    (memory.copy (i32.const 4123) (i32.const 256) (i32.const 37))
    (memory.copy (i32.add (i32.const 4160) (local.get $size)) (i32.const 320) (i32.const 25))
    (i64.or
      (i64.shl (i64.const 4123) (i64.const 32))
      (i64.extend_i32_u (i32.add (local.get $size) (i32.const 62))))))
