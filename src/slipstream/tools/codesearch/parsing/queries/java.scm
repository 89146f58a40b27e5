; Java. The captures are explained in grammars.py.
(class_declaration name: (_) @name) @def.class
(record_declaration name: (_) @name) @def.class
(interface_declaration name: (_) @name) @def.interface
(annotation_type_declaration name: (_) @name) @def.interface
(enum_declaration name: (_) @name) @def.enum
(enum_constant name: (_) @name) @def.field
(method_declaration name: (_) @name) @def.method
(constructor_declaration name: (_) @name) @def.method
(field_declaration declarator: (variable_declarator name: (_) @name)) @def.field
(superclass (_) @base)
(super_interfaces (type_list (_) @base))
(method_invocation object: (this) name: (_) @own)
(method_invocation object: (_) name: (_) @member)
(method_invocation name: (_) @call)
(object_creation_expression type: (_) @call)
(import_declaration (_) @module)
(identifier) @ref
(type_identifier) @ref
