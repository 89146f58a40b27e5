; JavaScript alone, after ecmascript.scm. The captures are explained in grammars.py.
(field_definition property: (_) @name) @def.field
(class_heritage (_) @base)
